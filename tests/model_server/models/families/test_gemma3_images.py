"""Gemma 3's image input: how images are cut, and what of its files is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.checkpoints.text_part import text_config
from model_server.models.media.media_recipe import MediaRecipe
from model_server.models.recipe import Recipe
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError, InvalidRequest
from tests.model_server.models.media.media_cases import (
    golden_media_of,
    images_of,
    media_config_of,
    prepared_of,
)
from tests.model_server.models.media.media_runs import recipe_of
from tests.model_server.models.refusals import refused_otherwise
from tests.tools.golden.media.gemma3 import preprocessor

PATCH = 7


def made(config: dict[str, Any], given: dict[str, Any] | None = None, **overrides: str) -> Recipe:
    outer = text_config(config)
    recipe = make_recipe(
        "auto", outer if given is None else {**outer, "preprocessor_config": given}, overrides
    )
    assert isinstance(recipe, Recipe)
    return recipe


def media_of(config: dict[str, Any], given: dict[str, Any] | None = None) -> MediaRecipe:
    return recipe_of(made(config, given))


@pytest.mark.parametrize("name", ["gemma3", "gemma3_odd"])
def test_pixels_are_those_of_the_reference_implementations_processor(name: str) -> None:
    given = {"gemma3": preprocessor(30), "gemma3_odd": _odd()}[name]
    recipe, golden = media_of(media_config_of(name), given), golden_media_of(name)
    for number, image in enumerate(images_of(name)):
        found, wanted = prepared_of(recipe, image), golden[f"pieces_{number}"]
        side = wanted.shape[1] // PATCH
        pieces = np.empty_like(found.pieces)
        pieces[found.places[:, 0]] = found.pieces
        squares = pieces.reshape(side, side, 3, PATCH, PATCH).transpose(2, 0, 3, 1, 4)
        seen = side * PATCH
        pixels = squares.reshape(3, seen, seen)
        np.testing.assert_allclose(pixels, wanted[:, :seen, :seen], atol=1e-5)


def _odd() -> dict[str, Any]:
    return preprocessor(35, resample=3, image_mean=[0.4, 0.5, 0.6], image_std=[0.3, 0.2, 0.25])


def test_the_text_of_an_image_is_its_tokens_between_two_others() -> None:
    recipe = media_of(media_config_of("gemma3"))
    text = prepared_of(recipe, images_of("gemma3")[0]).text
    soft = "<image_soft_token>" * 4
    assert text == f"\n\n<start_of_image>{soft}<end_of_image>\n\n"
    assert recipe.placeholder == "<start_of_image>"


def test_a_config_without_a_part_that_sees_makes_a_text_model() -> None:
    config = media_config_of("gemma3")
    del config["vision_config"]
    assert made(config).media == ()
    assert made(media_config_of("gemma3"), IMAGES="false").media == ()


def test_what_the_processor_would_do_otherwise_is_refused_by_its_key() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"do_pan_and_scan": True}, "do_pan_and_scan = true; supported: false"),
        ({"size": {"height": 30, "width": 40}}, "equal height and width"),
        ({"size": {"height": 60, "width": 60}}, "image_size, 30"),
        ({"image_seq_length": 16}, "mm_tokens_per_image, 4"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"image_std": [0, 1, 1]}, "image_std"),
        ({"do_resize": False}, "do_resize = false; supported: true"),
        ({"image_processor_type": "CLIPImageProcessor"}, "processors of Gemma3"),
        ({"sharpness": 2}, "keys that are not supported: sharpness"),
        ({"resample": "lanczos"}, "resample"),
        ({"rescale_factor": "1"}, "rescale_factor"),
    ]
    config = media_config_of("gemma3")
    wrong = refused_otherwise(
        lambda given: made(config, preprocessor(30) | given), cases, CheckpointError
    )
    assert wrong == {}
    for given, _ in cases:
        made(config, preprocessor(30) | given, IMAGES="false")


def test_a_part_that_sees_otherwise_is_refused_by_its_key() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"image_size": 6}, {}, "a piece must fit"),
        ({"num_attention_heads": 5}, {}, "heads must divide"),
        ({"num_channels": 4}, {}, "num_channels = 4"),
        ({"rope_theta": 1.0}, {}, "rope_theta"),
        ({}, {"mm_tokens_per_image": 5}, "square number"),
        ({}, {"mm_tokens_per_image": 25}, "at most the 16 pieces"),
        ({}, {"mm_tokens_per_image": 16}, "sliding_window 8, shorter than the 16 tokens"),
        ({}, {"image_token_index": "soft"}, "image_token_index"),
    ]
    config = media_config_of("gemma3")
    changed = [
        (config | outer | {"vision_config": config["vision_config"] | vision}, says)
        for vision, outer, says in cases
    ]
    assert refused_otherwise(made, changed, CheckpointError) == {}
    assert all(made(each, IMAGES="false").media == () for each, _ in changed)


def test_rows_in_memory_are_checked_against_the_largest_image() -> None:
    config = media_config_of("gemma3")
    assert made(config).media_rows == 4096
    assert made(config, MEDIA_ROWS="8").media_rows == 8
    with pytest.raises(InvalidRequest, match="give at least 8"):
        made(config, MEDIA_ROWS="7")
    with pytest.raises(InvalidRequest, match="MEDIA_ROWS is 0"):
        made(config, MEDIA_ROWS="0")
    with pytest.raises(InvalidRequest, match="IMAGES is 1"):
        made(config, IMAGES="1")


def test_a_model_without_image_input_takes_no_overrides_for_them() -> None:
    del (config := media_config_of("gemma3"))["vision_config"]
    with pytest.raises(InvalidRequest, match="IMAGES is true"):
        made(config, IMAGES="true")
    with pytest.raises(InvalidRequest, match="MEDIA_ROWS sizes"):
        made(config, MEDIA_ROWS="64")
    with pytest.raises(InvalidRequest, match="MEDIA_ROWS sizes"):
        made(media_config_of("gemma3"), MEDIA_ROWS="64", IMAGES="false")
