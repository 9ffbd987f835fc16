"""Models with image input that are served for text only, and how one learns of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from model_server.checkpoints.text_part import text_config
from model_server.loading.draft_loading import drafted
from model_server.loading.served_recipe import with_usable_media
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest
from tests.model_server.models.media.media_cases import media_config_of

CONFIG = text_config(media_config_of("gemma3"))
HEARING = text_config(media_config_of("qwen2_audio"))
KINDS = [(CONFIG, "IMAGES", "SOUNDS"), (HEARING, "SOUNDS", "IMAGES")]
DRAFT = {"SPECULATION": '"draft"', "DRAFT_MODEL": '"/models/small"'}


def recipe_of(**overrides: str) -> Recipe:
    made = make_recipe("auto", CONFIG, overrides)
    assert isinstance(made, Recipe)
    return made


def test_a_model_sees_images_where_nothing_forbids_it() -> None:
    recipe = recipe_of()
    assert with_usable_media(recipe, {}, proxied=False) is recipe


@pytest.mark.parametrize(
    ("proxied", "overrides", "says"),
    [(True, {}, "behind a proxy server"), (False, DRAFT, "what drafts its tokens")],
)
def test_elsewhere_it_is_served_for_text_alone_and_its_note_says_why(
    proxied: bool, overrides: dict[str, str], says: str
) -> None:
    made = with_usable_media(recipe_of(**overrides), overrides, proxied=proxied)
    assert (made.media, made.media_rows) == ((), None)
    assert says in made.note
    asked = overrides | {"IMAGES": "true"}
    with pytest.raises(InvalidRequest, match=f"IMAGES is true, but .*{says}"):
        with_usable_media(recipe_of(**asked), asked, proxied=proxied)


@pytest.mark.parametrize(("config", "own", "other"), KINDS)
def test_each_kind_has_an_override_that_leaves_it_out(
    config: Mapping[str, Any], own: str, other: str
) -> None:
    def media_of(**overrides: str) -> tuple[MediaRecipe, ...]:
        made = make_recipe("auto", config, overrides)
        assert isinstance(made, Recipe)
        return made.media

    assert media_of(**{own: "false"}) == ()
    for values in ({}, {own: "true"}, {other: "false"}):
        (media,) = media_of(**values)
        assert media.override == own
    with pytest.raises(InvalidRequest, match=f"{other} is true, but this model has no encoder of"):
        media_of(**{other: "true"})
    with pytest.raises(InvalidRequest, match=f"{own} is 1: give true, false or null"):
        media_of(**{own: "1"})


def test_a_model_that_hears_says_so_where_it_is_served_for_text_alone() -> None:
    recipe = make_recipe("auto", HEARING, {})
    assert isinstance(recipe, Recipe)
    assert "takes no sounds here" in with_usable_media(recipe, {}, proxied=True).note
    with pytest.raises(InvalidRequest, match="publish it without SOUNDS"):
        with_usable_media(recipe, {"SOUNDS": "true"}, proxied=True)


def test_a_draft_model_is_planned_for_text_alone() -> None:
    with pytest.raises(InvalidRequest, match="DRAFT_MODEL: .*IMAGES=false"):
        drafted(recipe_of(**DRAFT), DRAFT, CONFIG, None)
    blind = DRAFT | {"IMAGES": "false"}
    made = drafted(recipe_of(**blind), blind, CONFIG, None)
    assert made.draft is not None
    assert made.draft.recipe.media == ()
