"""Pixels as numbers, and patches in the order of the vectors that they become."""

from __future__ import annotations

import numpy as np
import pytest

from model_server.models.media.pixels import half_shades_of, patches_of, places_of, shades_of
from model_server.models.vision.vision_recipe import Colours
from tests.model_server.models.media.media_recipes import patches_at

COLOURS = Colours(1 / 255, (0.4, 0.5, 0.6), (0.3, 0.2, 0.25))


@pytest.mark.parametrize(("merged", "size"), [(1, (6, 4)), (2, (12, 8)), (3, (6, 18))])
def test_each_patch_lies_where_its_place_says(merged: int, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    shades = shades_of(COLOURS)
    found = patches_of(pixels, shades, 2, merged)
    places = places_of(size[0] // 2, size[1] // 2, merged)
    scaled = np.stack([shades[pixels[..., c], c] for c in range(3)])
    np.testing.assert_array_equal(found, patches_at(scaled, places, 2))


def test_patches_of_one_vector_lie_behind_each_other() -> None:
    assert places_of(2, 4, 2).tolist() == [
        *([0, 0], [0, 1], [1, 0], [1, 1]),
        *([0, 2], [0, 3], [1, 2], [1, 3]),
    ]


def test_a_byte_is_scaled_by_its_colour() -> None:
    shades = shades_of(COLOURS)
    np.testing.assert_allclose(shades[255], [(1 - 0.4) / 0.3, 2.5, 1.6], rtol=1e-6)
    np.testing.assert_allclose(shades[0], [-4 / 3, -2.5, -2.4], rtol=1e-6)


def test_half_shades_have_the_steps_of_bfloat16() -> None:
    shades = half_shades_of(Colours(1 / 255, (0.5,) * 3, (0.5,) * 3))
    assert shades.dtype == np.float32
    np.testing.assert_array_equal(shades.view(np.uint32) & 0xFFFF, 0)
    np.testing.assert_allclose(shades[:, 0], np.arange(256) / 127.5 - 1, atol=0.005)
