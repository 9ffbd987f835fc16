"""Queries see the whole blocks that they score highest and what is behind them, on any pages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model_server.kernels import xla
from model_server.kernels.chosen_blocks import WholeBlocks, choose_blocks
from model_server.kernels.pages import CacheShape, allocate
from model_server.kernels.whole import no_pages, whole_batch
from tests.model_server.tiny import PAGE, one_prompt

TOKENS, HEADS, DIM = 53, 3, 6
FIRST = 0.125  # of a block's place, added to its key


def pooled(keys: jax.Array, first: jax.Array) -> jax.Array:
    return keys.mean(axis=2) + FIRST * first.astype(jnp.float32)[None, :, None]


def vectors() -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys, of an idle row, too."""
    rng = np.random.default_rng(0)
    shapes = (1 + TOKENS, HEADS, DIM), (1 + TOKENS, 1, DIM)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)  # type: ignore[return-value]


def wanted(size: int, most: int) -> np.ndarray:
    """bool[S, S], one query after the other."""
    queries, keys = (each[1:] for each in vectors())
    made = np.zeros((TOKENS, TOKENS), bool)
    for at in range(TOKENS):
        count = (at + 1) // size
        made[at, count * size : at + 1] = True
        blocks = keys[: count * size, 0].reshape(count, size, DIM).mean(1)
        blocks = blocks + FIRST * size * np.arange(count)[:, None]
        scores = np.maximum(queries[at] @ blocks.T, 0).sum(0)
        for block in np.argsort(-scores, kind="stable")[:most]:
            made[at, block * size : (block + 1) * size] = True
    return made


@pytest.mark.parametrize("size", [3, PAGE, 2 * PAGE, 1])
def test_the_highest_blocks_and_the_tokens_behind_them_are_chosen(size: int) -> None:
    most, (queries, keys) = 2, map(jnp.asarray, vectors())
    blocks = WholeBlocks(size, most, pooled)
    cache = CacheShape(layers=1, kv_heads=1, key_dim=DIM, value_dim=0, chosen=True, plain=True)
    (layer,) = allocate(cache, -(-TOKENS // PAGE), PAGE, jnp.dtype("float32"))
    paged, _ = choose_blocks(one_prompt(TOKENS, xla.KERNEL), layer, queries, keys, blocks)
    whole = whole_batch(jnp.asarray([TOKENS]), TOKENS)
    unpaged, _ = choose_blocks(whole, no_pages(), queries[1:], keys[1:], blocks)
    causal, expected = np.tril(np.ones((TOKENS, TOKENS), bool)), wanted(size, most)
    for chosen in (paged, unpaged):
        assert chosen.blocks is not None
        found = np.asarray(chosen.blocks)[0, :, :TOKENS] & causal
        np.testing.assert_array_equal(found, expected)


def test_nothing_is_chosen_where_no_query_sees_more_blocks_than_it_may() -> None:
    queries, keys = map(jnp.asarray, vectors())
    cache = CacheShape(layers=1, kv_heads=1, key_dim=DIM, value_dim=0, chosen=True, plain=True)
    (layer,) = allocate(cache, -(-TOKENS // PAGE), PAGE, jnp.dtype("float32"))
    blocks = WholeBlocks(4, 100, pooled)
    chosen, _ = choose_blocks(one_prompt(TOKENS, xla.KERNEL), layer, queries, keys, blocks)
    assert chosen == (None, None)
