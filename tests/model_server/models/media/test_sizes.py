"""Numbers of pieces that are compiled."""

from __future__ import annotations

from itertools import pairwise

from model_server.models.media.media_recipe import doubling


def test_sizes_double_up_to_the_most_in_whole_steps() -> None:
    sizes = doubling(12100, 4)
    assert sizes[-1] == 12100
    assert all(size % 4 == 0 for size in sizes)
    assert all(a < b <= 2 * a for a, b in pairwise(sizes))
    assert sizes[0] <= 1024


def test_few_pieces_have_one_size() -> None:
    assert doubling(35, 4) == (36,)
