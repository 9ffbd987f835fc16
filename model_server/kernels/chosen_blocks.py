"""Attention in chosen blocks: each query sees the tokens of the blocks that it scores highest.

A token has one key for choosing. All scores are computed and all pages read, in plain XLA on every
platform: time and memory are those of attention to everything.
Sources: MiniMax 2026, "MiniMax-M3": a query has a few heads that choose, one for each group of
attending heads; a block's score is the highest among its tokens; the query's own block, or the few
blocks that end with it, are always chosen. transformers' `models/qwen4_exp`: the heads that choose
do so together; a block's score is that of the mean of its keys; only whole blocks are scored, and
the tokens behind the last of them are always seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels import xla
from model_server.kernels.chosen import Chosen
from model_server.kernels.paged import KernelRefusal, PagedBatch
from model_server.kernels.pages import LayerPages, key_major_shapes, write
from model_server.kernels.whole import WholeInputs

_Made = TypeVar("_Made")
# rows of the flat batch, pages, tables i32[N, S/G], limits i32[N, C], is it the decode rows?
_Run = Callable[[slice, LayerPages, jax.Array, jax.Array, bool], _Made]


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

    def run(
        rows: slice, pages: LayerPages, tables: jax.Array, limits: jax.Array, decodes: bool
    ) -> jax.Array | None:
        shaped = queries[rows].reshape(limits.shape[0], -1, *queries.shape[1:])
        if isinstance(blocks, WholeBlocks):
            return _choose_whole(pages, shaped, tables, limits, blocks)
        return _choose(pages, shaped, tables, limits, blocks)

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

    def run(
        rows: slice, pages: LayerPages, tables: jax.Array, limits: jax.Array, decodes: bool
    ) -> jax.Array:
        shaped = q[rows].reshape(limits.shape[0], -1, *q.shape[1:])
        its = chosen.decodes if decodes else chosen.blocks
        mixed = xla.paged_attention(shaped, pages, tables, limits, scale=scale, chosen=its)
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
        pages, tables = LayerPages(keys, values), jnp.arange(inputs)[:, None]
        return None, run(slice(None), pages, tables, batch.block_limits, False), layer
    if batch.kernel.shapes is not key_major_shapes or isinstance(batch.kernel, WholeInputs):
        raise KernelRefusal("attention in chosen blocks is computed over pages of plain XLA only")
    copies = layer.keys.shape[1] // k.shape[1]  # each device that shares the heads has a key
    layer = write(layer, jnp.repeat(k, copies, axis=1), v, batch.pages, batch.offsets)
    decodes = batch.decode_tables.shape[0]
    first = run(slice(0, decodes), layer, batch.decode_tables, batch.decode_limits, True)
    if not batch.block_tables.shape[0]:
        return first, None, layer
    rest = run(slice(decodes, None), layer, batch.block_tables, batch.block_limits, False)
    return first, rest, layer


def _choose(
    layer: LayerPages,
    queries: jax.Array,  # f32[N, C, J, I]
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    blocks: ChosenBlocks,
) -> jax.Array | None:
    """Return bool[N, J, C, S], the tokens that each query sees; None: all up to its own."""
    page_size = layer.keys.shape[3]
    tokens = tables.shape[1] * page_size
    count = -(-tokens // blocks.size)
    if count <= blocks.most:
        return None
    n, c, heads, _ = queries.shape

    def one_page(index: jax.Array, scores: jax.Array) -> jax.Array:
        pages = lax.dynamic_index_in_dim(tables, index, axis=1, keepdims=False)
        keys = layer.keys.at[pages, 0].get(mode="promise_in_bounds").astype(jnp.float32)
        found = jnp.einsum("ncji,nig->njcg", queries, keys, precision=lax.Precision.HIGHEST)
        if layer.key_scales is not None:
            scales = layer.key_scales.at[pages, 0].get(mode="promise_in_bounds")
            found = found * scales[:, None, None]
        at = lax.broadcast_to_rank(index * page_size + jnp.arange(page_size), 4)
        found = jnp.where(at < limits[:, None, :, None], found, -jnp.inf)
        return lax.dynamic_update_slice_in_dim(scores, found, index * page_size, axis=3)

    trips = (jnp.max(limits) + page_size - 1) // page_size
    scores = jnp.full((n, heads, c, tokens), -jnp.inf)
    scores = lax.fori_loop(0, trips, one_page, scores)
    padding = [(0, 0)] * 3 + [(0, count * blocks.size - tokens)]
    scores = jnp.pad(scores, padding, constant_values=-jnp.inf)
    best = scores.reshape(n, heads, c, count, blocks.size).max(-1)
    own = jnp.maximum(limits - 1, 0) // blocks.size
    since = own[:, None, :, None] - lax.broadcast_to_rank(jnp.arange(count), 4)
    best = jnp.where((since >= 0) & (since < blocks.nearest), jnp.inf, best)
    _, highest = lax.top_k(best, blocks.most)
    kept = jnp.zeros(best.shape, bool)
    kept = jnp.put_along_axis(kept, highest, jnp.bool_(True), axis=-1, inplace=False)
    return jnp.repeat(kept, blocks.size, axis=-1)[..., :tokens]


def _choose_whole(
    layer: LayerPages,
    queries: jax.Array,  # f32[N, C, H, J]
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    blocks: WholeBlocks,
) -> jax.Array | None:
    """Return bool[N, C, S], the tokens that each query sees; None: all up to its own."""
    page_size, columns = layer.keys.shape[3], tables.shape[1]
    tokens = columns * page_size
    if tokens // blocks.size <= blocks.most:
        return None
    # As many pages together as hold whole blocks.
    span = math.lcm(page_size, blocks.size)
    pages, each, spans = span // page_size, span // blocks.size, -(-tokens // span)
    tables = jnp.pad(tables, ((0, 0), (0, spans * pages - columns)))

    def one_span(index: jax.Array, scores: jax.Array) -> jax.Array:
        held = lax.dynamic_slice_in_dim(tables, index * pages, pages, axis=1)
        starts = index * span + jnp.arange(each) * blocks.size
        keys = blocks.pooled(
            _keys_of(layer, held).reshape(len(held), each, blocks.size, -1), starts
        )
        found = jnp.einsum("nchj,nbj->nhcb", queries, keys, precision=lax.Precision.HIGHEST)
        found = jnp.sum(jax.nn.relu(found), axis=1)
        ends = lax.broadcast_to_rank(starts + blocks.size, 3)
        found = jnp.where(ends <= limits[..., None], found, -jnp.inf)
        return lax.dynamic_update_slice_in_dim(scores, found, index * each, axis=2)

    scores = jnp.full((*limits.shape, spans * each), -jnp.inf)
    scores = lax.fori_loop(0, (jnp.max(limits) + span - 1) // span, one_span, scores)
    _, highest = lax.top_k(scores, blocks.most)
    begun = (limits // blocks.size)[..., None]  # the block that is not whole yet
    kept = lax.broadcast_to_rank(jnp.arange(spans * each), 3) == begun
    kept = jnp.put_along_axis(kept, highest, jnp.bool_(True), axis=-1, inplace=False)
    return jnp.repeat(kept, blocks.size, axis=-1)[..., :tokens]


def _keys_of(layer: LayerPages, pages: jax.Array) -> jax.Array:
    """f32[N, p * G, I]: the keys of all tokens in pages i32[N, p]."""
    keys = layer.keys.at[pages, 0].get(mode="promise_in_bounds").astype(jnp.float32)
    if layer.key_scales is not None:
        scales = layer.key_scales.at[pages, 0].get(mode="promise_in_bounds")
        keys = keys * scales[:, :, None]
    return keys.transpose(0, 1, 3, 2).reshape(len(pages), -1, keys.shape[2])
