"""Images for Pixtral's tower, and what of its files is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from model_server.sharing.images.forms import LongestForm
from sax.errors import InvalidRequest
from tests.model_server.models.media.media_cases import media_config_of, preprocessor_of
from tests.model_server.models.media.media_recipes import (
    made,
    media_of,
    patches_at,
    pixels_of,
    prepared_images,
    seen_otherwise,
)


@pytest.mark.parametrize(
    ("name", "patch"), [("mistral3", 4), ("mistral3_ministral3", 5), ("llava_pixtral", 4)]
)
def test_pixels_are_those_of_the_reference_implementations_processor(name: str, patch: int) -> None:
    for number, image in enumerate(prepared_images(name)):
        wanted = patches_at(pixels_of(name, number), image.places, patch)
        np.testing.assert_allclose(image.pieces, wanted, atol=1e-5)


def test_rows_of_vectors_end_with_tokens_of_their_own() -> None:
    _, tall, *_ = prepared_images("mistral3")
    assert (tall.grid, tall.rows) == ((1, 5, 1), 5)
    assert tall.text == "[IMG][IMG_BREAK]" * 4 + "[IMG][IMG_END]"


def test_the_published_sizes_give_3025_vectors_at_most() -> None:
    vision = {
        "head_dim": 64,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "image_size": 1540,
        "patch_size": 14,
    }
    recipe = media_of("mistral3", vision=vision, size={"longest_edge": 1540})
    assert (recipe.rows, recipe.per_row, recipe.pieces[-1]) == (3025, 4, 12100)


def test_image_pixels_bounds_the_longer_side() -> None:
    config, given = media_config_of("mistral3"), preprocessor_of("mistral3")
    (bounded,) = made(config, given, IMAGE_PIXELS="640").media
    assert (bounded.form, bounded.rows) == (LongestForm(8, 25), 16)
    for wrong in ("63", "2305", "true"):
        with pytest.raises(InvalidRequest, match="from 64, .* to 2304"):
            made(config, given, IMAGE_PIXELS=wrong)


def test_without_a_processors_file_the_sides_of_an_image_are_the_towers() -> None:
    (recipe,) = made(media_config_of("mistral3"), None).media
    assert recipe.form == media_of("mistral3").form


def test_a_config_without_a_part_that_sees_makes_a_text_model() -> None:
    config = media_config_of("mistral3")
    assert made(config, None, IMAGES="false").media == ()
    del config["vision_config"]
    assert made(config, None).media == ()


def test_what_would_be_seen_otherwise_is_refused_by_its_key() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
        ({}, {"num_attention_heads": 3}, {}, "multiple of 4"),
        ({}, {"head_dim": 4}, {}, "head_dim = 4"),
        ({}, {"num_channels": 1}, {}, "num_channels = 1"),
        ({}, {"window": 7}, {}, "window = 7"),
        ({}, {"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_type axial"),
        ({}, {"hidden_act": "swoosh"}, {}, "activation 'swoosh'"),
        ({"vision_feature_layer": -2}, {}, {}, "vision_feature_layer = -2"),
        ({"spatial_merge_size": 0}, {}, {}, "spatial_merge_size = 0"),
        ({"image_token_index": "soft"}, {}, {}, "image_token_index"),
        ({}, {}, {"size": {"shortest_edge": 48}}, "a longest_edge, or equal height"),
        ({}, {}, {"size": {"longest_edge": 4096}}, "at most 65536 patches"),
        ({}, {}, {"do_center_crop": True}, "do_center_crop = true"),
        ({}, {}, {"image_processor_type": "CLIPImageProcessor"}, "processors of Pixtral"),
        ({}, {}, {"sharpness": 2}, "not supported: sharpness"),
    ]
    assert seen_otherwise("mistral3", cases) == {}
