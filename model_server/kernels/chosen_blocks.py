"""Attention in chosen blocks: each query sees the tokens of the blocks that it scores highest.

A token has one key for choosing. All scores are computed and all pages read, by the native kernels
on CPUs, else in plain XLA: time and memory are those of attention to everything.
Sources: MiniMax 2026, "MiniMax-M3": a query has a few heads that choose, one for each group of
attending heads; a block's score is the highest among its tokens; the query's own block, or the few
blocks that end with it, are always chosen. transformers' `models/qwen4_exp`: the heads that choose
do so together; a block's score is that of the mean of its keys; only whole blocks are scored, and
the tokens behind the last of them are always seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels.chosen import Chosen, highest, means_of_spans
from model_server.kernels.cpu.served import reading_of
from model_server.kernels.paged import KernelRefusal, PagedBatch, PageReading, SeenPages
from model_server.kernels.pages import LayerPages, key_major_shapes, write
from model_server.kernels.whole import WholeInputs
from model_server.kernels.xla import READING

_Made = TypeVar("_Made")
# what reads pages, which pages, rows of the flat batch, are they the decode rows?
_Run = Callable[[PageReading, SeenPages, slice, bool], _Made]


class ChosenBlocks(NamedTuple):
    size: int  # tokens of a block
    most: int  # blocks that a query sees
    nearest: int  # of them, those that end with the query's own


class WholeBlocks(NamedTuple):
    size: int  # tokens of a block
    most: int  # blocks that a query sees, beside the tokens behind the last whole one
    # cached keys of blocks f32[N, b, size, I], the place i32[b] of each block's first token -> keys
    # of the blocks f32[N, b, J]
    pooled: Callable[[jax.Array, jax.Array], jax.Array]


def choose_blocks(
    batch: PagedBatch,
    layer: LayerPages,  # keys alone
    queries: jax.Array,  # f32[T, J, I]; of whole blocks f32[T, H, J]
    keys: jax.Array,  # f32[T, 1, I]
    blocks: ChosenBlocks | WholeBlocks,
) -> tuple[Chosen, LayerPages]:
    """Write the keys; return bool[.., J, C, S] of decodes and blocks, None: all that they see.

    Of whole blocks: bool[.., C, S], alike for all heads.
    """

    def run(reading: PageReading, pages: SeenPages, rows: slice, decodes: bool) -> jax.Array | None:
        shaped = queries[rows].reshape(pages.limits.shape[0], -1, *queries.shape[1:])
        if isinstance(blocks, WholeBlocks):
            return _choose_whole(reading, pages, shaped, blocks)
        return _choose(reading, pages, shaped, blocks)

    first, rest, layer = _each(batch, layer, keys, None, run)
    return Chosen(first, rest), layer


def attend_in_blocks(
    batch: PagedBatch,
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    k: jax.Array,  # f32[T, K, Q]
    v: jax.Array,  # f32[T, K, W]
    chosen: Chosen,  # of all heads, or of J heads, for H / J query heads each
    *,
    scale: float,
) -> tuple[jax.Array, LayerPages]:
    """Write the new keys and values, then attend. Returns f32[T, H, W]."""

    def run(reading: PageReading, pages: SeenPages, rows: slice, decodes: bool) -> jax.Array:
        shaped = q[rows].reshape(pages.limits.shape[0], -1, *q.shape[1:])
        its = chosen.decodes if decodes else chosen.blocks
        mixed = reading.attention(shaped, [pages._replace(chosen=its)], scale=scale)
        return mixed.reshape(-1, *mixed.shape[2:])

    first, rest, layer = _each(batch, layer, k, v, run)
    return jnp.concatenate([each for each in (first, rest) if each is not None]), layer


def _each(
    batch: PagedBatch, layer: LayerPages, k: jax.Array, v: jax.Array | None, run: _Run[_Made]
) -> tuple[_Made | None, _Made | None, LayerPages]:
    """Run over decode rows and over blocks, of pages with the new tokens written.

    Whole inputs are read without pages. Raises KernelRefusal.
    """
    if batch.split is not None:
        raise KernelRefusal(
            "attention in chosen blocks is not computed with the tokens of a step divided over "
            "devices: set SHARDING_RULES tokens to null"
        )
    if isinstance(batch.kernel, WholeInputs) and batch.kernel.causal:
        inputs, length = batch.block_limits.shape
        keys = k.reshape(inputs, length, *k.shape[1:]).transpose(0, 2, 3, 1)
        values = (
            None if v is None else v.reshape(inputs, length, *v.shape[1:]).transpose(0, 2, 1, 3)
        )
        tables = jnp.arange(inputs)[:, None]
        pages = SeenPages(LayerPages(keys, values), tables, batch.block_limits)
        return None, run(READING, pages, slice(None), False), layer
    if batch.kernel.shapes is not key_major_shapes or isinstance(batch.kernel, WholeInputs):
        raise KernelRefusal("attention in chosen blocks is computed over pages of plain XLA only")
    copies = layer.keys.shape[1] // k.shape[1]  # each device that shares the heads has a key
    layer = write(layer, jnp.repeat(k, copies, axis=1), v, batch.pages, batch.offsets)
    decodes, reading = batch.decode_tables.shape[0], reading_of(batch.kernel)
    pages = SeenPages(layer, batch.decode_tables, batch.decode_limits)
    first = run(reading, pages, slice(0, decodes), True)
    if not batch.block_tables.shape[0]:
        return first, None, layer
    pages = SeenPages(layer, batch.block_tables, batch.block_limits)
    return first, run(reading, pages, slice(decodes, None), False), layer


def _choose(
    reading: PageReading,
    pages: SeenPages,
    queries: jax.Array,  # f32[N, C, J, I]
    blocks: ChosenBlocks,
) -> jax.Array | None:
    """Return bool[N, J, C, S], the tokens that each query sees; None: all up to its own."""
    layer, tables, limits, *_ = pages
    tokens = tables.shape[1] * layer.keys.shape[3]
    count = -(-tokens // blocks.size)
    if count <= blocks.most:
        return None
    n, c, heads, _ = queries.shape
    scores = reading.scores(pages, queries, None).swapaxes(1, 2)  # [N, J, C, S]
    padding = [(0, 0)] * 3 + [(0, count * blocks.size - tokens)]
    scores = jnp.pad(scores, padding, constant_values=-jnp.inf)
    best = scores.reshape(n, heads, c, count, blocks.size).max(-1)
    own = jnp.maximum(limits - 1, 0) // blocks.size
    since = own[:, None, :, None] - lax.broadcast_to_rank(jnp.arange(count), 4)
    best = jnp.where((since >= 0) & (since < blocks.nearest), jnp.inf, best)
    kept = highest(best, blocks.most)
    return jnp.repeat(kept, blocks.size, axis=-1)[..., :tokens]


def _choose_whole(
    reading: PageReading,
    pages: SeenPages,
    queries: jax.Array,  # f32[N, C, H, J]
    blocks: WholeBlocks,
) -> jax.Array | None:
    """Return bool[N, C, S], the tokens that each query sees; None: all up to its own."""
    layer, tables, limits, *_ = pages
    page_size = layer.keys.shape[3]
    tokens = tables.shape[1] * page_size
    if tokens // blocks.size <= blocks.most:
        return None

    def means(columns: jax.Array, first: jax.Array) -> jax.Array:
        keys = _keys_of(layer, columns)
        starts = first + jnp.arange(keys.shape[1] // blocks.size) * blocks.size
        return blocks.pooled(keys.reshape(len(keys), len(starts), blocks.size, -1), starts)

    made = means_of_spans(
        tables, jnp.max(limits), (page_size, blocks.size, queries.shape[3]), means
    )
    seen = SeenPages(*made, limits // blocks.size)
    scores = reading.scores(seen, queries, jnp.ones(queries.shape[:3], jnp.float32))
    begun = limits[..., None] // blocks.size  # the block that is not whole yet
    kept = highest(scores, blocks.most)
    kept |= lax.broadcast_to_rank(jnp.arange(scores.shape[2]), 3) == begun
    return jnp.repeat(kept, blocks.size, axis=-1)[..., :tokens]


def _keys_of(layer: LayerPages, pages: jax.Array) -> jax.Array:
    """f32[N, p * G, I]: the keys of all tokens in pages i32[N, p]."""
    keys = layer.keys.at[pages, 0].get(mode="promise_in_bounds").astype(jnp.float32)
    if layer.key_scales is not None:
        scales = layer.key_scales.at[pages, 0].get(mode="promise_in_bounds")
        keys = keys * scales[:, :, None]
    return keys.transpose(0, 1, 3, 2).reshape(len(pages), -1, keys.shape[2])
