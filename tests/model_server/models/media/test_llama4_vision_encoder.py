"""Llama 4's tiles, and what of its files is refused.

The reference scales images with torchvision, whose bytes differ from Pillow's by one at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.model_server.models.media.media_cases import media_config_of
from tests.model_server.models.media.media_recipes import (
    made,
    media_of,
    patches_at,
    pixels_of,
    prepared_images,
    seen_otherwise,
)


@pytest.mark.parametrize(("name", "patch", "side"), [("llama4", 4, 4), ("llama4_few", 3, 6)])
def test_pixels_are_those_of_the_reference_implementations_processor(
    name: str, patch: int, side: int
) -> None:
    for number, image in enumerate(prepared_images(name)):
        tiles = pixels_of(name, number)
        assert len(image.pieces) == len(tiles) * side**2
        for at, tile in enumerate(tiles):
            mine = slice(at * side**2, (at + 1) * side**2)
            wanted = patches_at(tile, image.places[mine], patch)
            np.testing.assert_array_equal(image.pieces[mine], wanted)


def test_tiles_are_written_row_by_row_and_then_the_whole_image() -> None:
    single, grid, column = (image.text for image in prepared_images("llama4"))
    tile = "<|patch|>" * 4
    whole = f"<|image|>{tile}<|image_end|>"
    assert single == f"<|image_start|>{whole}"
    line = "<|tile_x_separator|>".join([tile] * 3) + "<|tile_y_separator|>"
    assert grid == f"<|image_start|>{line * 2}{whole}"
    assert column == f"<|image_start|>{(tile + '<|tile_y_separator|>') * 3}{whole}"


def test_programs_are_compiled_for_a_few_numbers_of_tiles() -> None:
    assert media_of("llama4").pieces == (16, 48, 80, 144, 272)
    assert media_of("llama4_few").pieces == (36, 108, 180)
    assert media_of("llama4", max_patches=1).pieces == (16,)


def test_a_config_without_a_part_that_sees_makes_a_text_model() -> None:
    config = media_config_of("llama4")
    assert made(config, None, IMAGES="false").media == ()
    del config["vision_config"]
    assert made(config, None).media == ()


def test_what_would_be_seen_otherwise_is_refused_by_its_key() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
        ({}, {"pixel_shuffle_ratio": 0.3}, {}, "pixel_shuffle_ratio = 0.3"),
        ({}, {"pixel_shuffle_ratio": 0.25}, {}, "needs 256 and three equal ones"),
        ({}, {"projector_output_dim": 20}, {}, "three equal ones"),
        ({}, {"num_attention_heads": 3}, {}, "multiple of 4"),
        ({}, {"image_size": 20}, {}, "whole squares"),
        ({}, {"vision_feature_select_strategy": "full"}, {}, "vision_feature_select_strategy"),
        ({}, {"rope_parameters": {"rope_type": "yarn"}}, {}, "rope_theta and the rope_type axial"),
        ({}, {"scale": 2.0}, {}, "scale = 2.0"),
        ({}, {}, {"size": {"height": 32, "width": 32}}, "image_size, 16"),
        ({}, {}, {"max_patches": 65}, "max_patches"),
        ({}, {}, {"resize_to_max_canvas": 1}, "true or false"),
        ({}, {}, {"do_pad": True}, "do_pad = true"),
        ({}, {}, {"image_processor_type": "CLIPImageProcessor"}, "processors of Llama4"),
    ]
    assert seen_otherwise("llama4", cases) == {}
