"""Images are cut into patches in the order in which they are merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_server.models.media.image_processor import Scales
from model_server.models.media.qwen.vision_encoder import PatchGrid
from sax.errors import InvalidRequest

GRID = PatchGrid(
    patch=1,
    merge=2,
    frames=2,
    scales=Scales(1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    most=64,
    token="<image>",
)


def pixels(height: int, width: int) -> np.ndarray:
    """u8[h, w, 3]: each pixel tells its row, its column and 7."""
    rows, columns = np.indices((height, width))
    return np.stack([rows, columns, np.full_like(rows, 7)], -1).astype(np.uint8)


def test_patches_of_one_vector_lie_next_to_each_other() -> None:
    made = GRID(pixels(4, 6))
    assert made.places[:8, :2].tolist() == [
        *([0, 0], [0, 1], [1, 0], [1, 1]),
        *([0, 2], [0, 3], [1, 2], [1, 3]),
    ]
    assert made.places[:, 2:].tolist() == [[4, 6]] * 24
    assert (made.grid, made.rows, made.text) == ((1, 2, 3), 6, "<image>" * 6)


def test_a_patch_has_each_colour_in_both_frames() -> None:
    made = GRID(pixels(2, 2))
    assert made.pieces[3].tolist() == [1, 1, 1, 1, 7, 7]
    assert GRID.numbers == 6


def test_windows_come_one_after_the_other_and_those_at_the_edges_are_smaller() -> None:
    """Windows of 2 x 2 vectors over 3 x 3 of them."""
    made = replace(GRID, window=2)(pixels(6, 6))
    vectors = made.places[::4, 2] // 4
    assert vectors.tolist() == [0, 1, 3, 4, 2, 5, 6, 7, 8]
    assert made.places[::4, 3].tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    assert sorted(made.places[:, 2].tolist()) == list(range(36))


def test_an_image_of_more_patches_than_were_loaded_for_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="becomes 72 patches, .*loaded for 64"):
        GRID(pixels(2, 36))
