"""States in pages: which a batch reads and leaves, with a running sum as the recurrence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels.states import StatePlaces, advance, advance_whole, places_of

PAGE = 8
BLANK = (jnp.zeros((1,), jnp.float32),)


def summed(state: Any, given: jax.Array, count: jax.Array) -> tuple[Any, jax.Array]:
    """The sum of all inputs so far, f32[C, 1]; padding counts for nothing."""
    there = jnp.arange(given.shape[0]) < count
    sums = state[0][None] + jnp.cumsum(jnp.where(there[:, None], given, 0.0), axis=0)
    return (sums[-1],), sums


def placed() -> tuple[StatePlaces, tuple[int, ...]]:
    """A decode at position 8, one at 13, a padding row; then blocks of 4 tokens: two sequences, one
    with blocks at 4, 8 and 12, whose last has 2 tokens, one at 0, and a padding block. With the
    blocks' tokens."""
    decode_tables = jnp.asarray([[1, 2], [3, 4], [0, 0]], jnp.int32)
    decode_limits = jnp.asarray([[9], [14], [0]], jnp.int32)
    block_tables = jnp.asarray([[5, 6], [5, 6], [5, 6], [7, 8], [0, 0]], jnp.int32)
    starts, counts = (4, 8, 12, 0, 0), (4, 4, 2, 4, 0)
    limits = [
        [start + at + 1 if at < count else 0 for at in range(4)]
        for start, count in zip(starts, counts, strict=True)
    ]
    block_limits = jnp.asarray(limits, jnp.int32)
    return places_of(decode_tables, decode_limits, block_tables, block_limits, PAGE), counts


def played() -> tuple[np.ndarray, np.ndarray]:
    """The sums after each token, and those that the pages hold afterwards."""
    places, counts = placed()
    held = (jnp.asarray(np.arange(9) * 100.0, jnp.float32)[:, None],)
    inputs = jnp.ones((3 + 5 * 4, 1), jnp.float32)
    made, (left,) = advance(held, places, BLANK, inputs, jnp.asarray(counts), summed)
    return np.asarray(made)[:, 0], np.asarray(left)[:, 0]


def test_a_row_goes_on_with_the_state_in_the_page_of_the_token_before() -> None:
    made, _ = played()
    assert made[:2].tolist() == [101, 401], "the page before the border, and the same page"


def test_blocks_of_one_sequence_follow_each_other_and_another_begins_blank() -> None:
    made, _ = played()
    blocks = made[3:].reshape(5, 4)
    assert blocks[:2].tolist() == [[501, 502, 503, 504], [505, 506, 507, 508]]
    assert blocks[2, :2].tolist() == [509, 510]
    assert blocks[3].tolist() == [1, 2, 3, 4]


def test_a_page_keeps_the_state_after_its_last_token() -> None:
    """Of two blocks in page 6 the second one's; those of others are untouched."""
    _, left = played()
    assert left[1:].tolist() == [100, 101, 300, 401, 504, 510, 4, 800]


def test_no_page_is_written_twice_but_scratch() -> None:
    """An accelerator would leave either."""
    writes = placed()[0].writes.tolist()
    assert writes == [2, 4, 0, 5, 0, 6, 7, 0]


def test_whole_inputs_begin_blank_and_end_where_they_end() -> None:
    made = advance_whole(BLANK, jnp.ones((8, 1)), jnp.asarray([4, 2]), summed)
    assert np.asarray(made)[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 2, 2]


def drafted(pages: list[int]) -> tuple[list[float], list[float]]:
    """The sums after rows at positions 8, 9, 10 of one sequence and 13 of another, of which those
    with a page here try draft tokens; and what the pages hold afterwards."""
    tables = jnp.asarray([[1, 2], [1, 2], [1, 2], [3, 4]], jnp.int32)
    limits = jnp.asarray([[9], [10], [11], [14]], jnp.int32)
    none = jnp.zeros((0, 2), jnp.int32), jnp.zeros((0, 4), jnp.int32)
    places = places_of(tables, limits, *none, PAGE, jnp.asarray(pages, jnp.int32))
    held = (jnp.asarray(np.arange(9) * 100.0, jnp.float32)[:, None],)
    inputs = jnp.asarray([[1.0], [2.0], [4.0], [8.0]])
    made, (left,) = advance(held, places, BLANK, inputs, jnp.zeros((0,), jnp.int32), summed)
    return np.asarray(made)[:, 0].tolist(), np.asarray(left)[1:, 0].tolist()


def test_a_draft_token_goes_on_where_the_row_before_it_ended_and_leaves_its_state_apart() -> None:
    made, left = drafted([0, 5, 7, 0])
    assert made == [101, 103, 107, 408]
    assert left == [100, 101, 300, 408, 103, 600, 107, 800]


def test_rows_without_draft_tokens_go_on_from_their_pages() -> None:
    made, _ = drafted([0, 0, 0, 0])
    assert made == [101, 202, 204, 408]
