"""Reordered rows come back; the orders are those of llama.cpp's converter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.gguf.architecture import (
    fused,
    halves_of_heads,
    heads_of_thirds,
    inverse,
    rotated,
)
from sax.errors import CheckpointError


def test_halves_of_a_head_are_neighbours_in_the_file() -> None:
    """Two heads of six rows: row 1 of the first half is the file's third."""
    order = halves_of_heads(12, 2)
    assert order.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_all_queries_come_first_in_the_file() -> None:
    """Two heads of one row each: q q k k v v in the file, q k v q k v here."""
    assert heads_of_thirds(6, 2).tolist() == [0, 2, 4, 1, 3, 5]


@given(st.integers(1, 5), st.integers(1, 6))
def test_an_order_and_its_inverse_cancel(heads: int, half: int) -> None:
    for order in (
        halves_of_heads(heads * half * 2, heads),
        heads_of_thirds(heads * half * 3, heads),
    ):
        values = np.arange(len(order)) * 7
        np.testing.assert_array_equal(values[inverse(order)][order], values)


def test_rows_that_are_not_the_heads_are_refused() -> None:
    config = {"num_attention_heads": 4, "hidden_size": 32}
    assert len(rotated("num_attention_heads").for_tensor(32, config, "q")) == 32
    assert len(fused("num_attention_heads").for_tensor(96, config, "qkv")) == 96
    with pytest.raises(CheckpointError, match="tensor q has 31 rows; its heads need 32"):
        rotated("num_attention_heads").for_tensor(31, config, "q")
