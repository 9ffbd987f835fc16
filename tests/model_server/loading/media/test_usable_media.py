"""Models with image input that are served for text only, and how one learns of it."""

from __future__ import annotations

import pytest

from model_server.checkpoints.text_part import text_config
from model_server.loading.draft_loading import drafted
from model_server.loading.media.usable_media import with_usable_media
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import InvalidRequest
from tests.model_server.models.media.media_cases import media_config_of

CONFIG = text_config(media_config_of("gemma3"))
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
    [(True, {}, "behind a proxy server"), (False, DRAFT, "its draft model")],
)
def test_elsewhere_it_is_served_for_text_alone_and_its_note_says_why(
    proxied: bool, overrides: dict[str, str], says: str
) -> None:
    made = with_usable_media(recipe_of(**overrides), overrides, proxied=proxied)
    assert (made.media, made.media_rows) == (None, None)
    assert says in made.note
    asked = overrides | {"IMAGES": "true"}
    with pytest.raises(InvalidRequest, match=f"IMAGES is true, but .*{says}"):
        with_usable_media(recipe_of(**asked), asked, proxied=proxied)


def test_a_draft_model_is_planned_for_text_alone() -> None:
    with pytest.raises(InvalidRequest, match="DRAFT_MODEL: .*IMAGES=false"):
        drafted(recipe_of(**DRAFT), DRAFT, CONFIG, None)
    blind = DRAFT | {"IMAGES": "false"}
    made = drafted(recipe_of(**blind), blind, CONFIG, None)
    assert made.draft is not None
    assert made.draft.recipe.media is None
