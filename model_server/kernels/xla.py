"""Paged attention in plain XLA: runs on every platform, tuned for the CPU.

One page of every sequence per iteration, with a running softmax (Milakov and Gimelshein 2018,
https://arxiv.org/abs/1805.02867): the copy made by the gather stays in cache, and the trip count is
a runtime value, so one program serves every context length. Gathering whole page tables first is 3
to 8 times slower at 32 sequences, because that copy goes through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels.paged import SeenPages, WriteThenRead, first_seen
from model_server.kernels.pages import HIGHEST, LayerPages

_MASKED = -1e30


def paged_attention(
    q: jax.Array,  # f32[N, C, H, Q]
    layer: LayerPages,  # keys transposed: both products run along rows
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    *,
    sinks: jax.Array | None = None,
    **scores: Any,  # as of `seen_on`
) -> jax.Array:
    """As `reference.paged_attention`, up to the order of additions."""
    width = q.shape[3] if layer.values is None else layer.values.shape[3]
    begun = nothing_seen(q, layer.keys.shape[1], width, sinks)
    return mixture_of(seen_on(begun, q, layer, tables, limits, **scores), q, limits)


class XlaReading:
    """As `paged.PageReading`."""

    def attention(
        self,
        q: jax.Array,
        seen: Sequence[SeenPages],
        *,
        scale: float,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        first = seen[0].layer
        width = q.shape[3] if first.values is None else first.values.shape[3]
        found = nothing_seen(q, first.keys.shape[1], width, sinks)
        for layer, tables, limits, window, chosen in seen:
            how: Any = {"scale": scale, "window": window, "chosen": chosen}
            found = seen_on(found, q, layer, tables, limits, **how)
        return mixture_of(found, q, seen[0].limits)

    def scores(self, pages: SeenPages, queries: jax.Array, weights: jax.Array | None) -> jax.Array:
        layer, tables, limits, *_ = pages
        page_size, first = layer.keys.shape[3], layer.keys.shape[2] - queries.shape[3]
        shape = queries.shape[: 3 if weights is None else 2]
        made = jnp.full((*shape, tables.shape[1] * page_size), -jnp.inf)
        bounds = limits[:, :, None, None] if weights is None else limits[:, :, None]

        def one_page(index: jax.Array, made: jax.Array) -> jax.Array:
            page = lax.dynamic_index_in_dim(tables, index, axis=1, keepdims=False)
            keys = layer.keys.at[page, 0, first:].get(mode="promise_in_bounds")  # [N, I, G]
            found = jnp.einsum(
                "ncji,nig->ncjg", queries, keys.astype(jnp.float32), precision=lax.Precision.HIGHEST
            )
            if layer.key_scales is not None:
                scales = layer.key_scales.at[page, 0].get(mode="promise_in_bounds")
                found = found * scales[:, None, None]
            if weights is not None:
                found = jnp.einsum("ncj,ncjg->ncg", weights, jax.nn.relu(found))
            at = lax.broadcast_to_rank(index * page_size + jnp.arange(page_size), found.ndim)
            found = jnp.where(at < bounds, found, -jnp.inf)
            last = found.ndim - 1
            return lax.dynamic_update_slice_in_dim(made, found, index * page_size, axis=last)

        trips = (jnp.max(limits) + page_size - 1) // page_size
        return lax.fori_loop(0, trips, one_page, made)


class SoftmaxSoFar(NamedTuple):
    """Running softmax of rows, which are the queries of all heads that share a KV head."""

    highest: jax.Array  # f32[N, K, rows]: of the scores
    total: jax.Array  # f32[N, K, rows]: of the weights
    output: jax.Array  # f32[N, K, rows, W]: weighted values


def nothing_seen(q: jax.Array, kv_heads: int, width: int, sinks: jax.Array | None) -> SoftmaxSoFar:
    """Return what queries f32[N, C, H, Q] have before any page is seen; width: W of a value."""
    n, c, h, _ = q.shape
    return SoftmaxSoFar(*_nothing(sinks, (n, kv_heads, c * h // kv_heads), width))


def mixture_of(seen: SoftmaxSoFar, q: jax.Array, limits: jax.Array) -> jax.Array:
    """Return f32[N, C, H, W], what queries f32[N, C, H, Q] with limits i32[N, C] attended to."""
    n, c, h, _ = q.shape
    kv_heads, width = seen.output.shape[1], seen.output.shape[3]
    # A padding row saw only masked scores, so its weights are exp(0); zero it by its limit.
    there = (jnp.tile(limits, (1, h // kv_heads)) > 0)[:, None, :, None]
    output = jnp.where(there, seen.output / jnp.maximum(seen.total, 1e-30)[..., None], 0.0)
    output = output.reshape(n, kv_heads, h // kv_heads, c, width).transpose(0, 3, 1, 2, 4)
    return output.reshape(n, c, h, width)


def seen_on(
    before: SoftmaxSoFar,
    q: jax.Array,  # f32[N, C, H, Q]: compared with the first Q numbers of a key
    layer: LayerPages,
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    chunk: int | None = None,
    ahead: jax.Array | None = None,  # i32[N, C]
    # bool[N, C, S]: the tokens each query attends to, or bool[N, J, C, S]: by groups of its heads;
    # None: all
    chosen: jax.Array | None = None,
) -> SoftmaxSoFar:
    """Attend to these pages, too."""
    n, c, h, d = q.shape
    _, kv_heads, _, page_size = layer.keys.shape
    rows = c * h // kv_heads
    # Heads before queries: rows stay sharded if a mesh shards the heads of one KV head.
    queries = (q * scale).reshape(n, c, kv_heads, -1, d).transpose(0, 2, 3, 1, 4)
    queries = queries.reshape(n, kv_heads, rows, d)
    row_limits = jnp.tile(limits, (1, h // kv_heads))  # i32[N, rows]
    reach = limits if ahead is None else limits + ahead
    row_reach = row_limits if ahead is None else jnp.tile(reach, (1, h // kv_heads))
    first = _first_pages(limits, window, chunk, page_size)

    def one_page(index: jax.Array, carry: SoftmaxSoFar) -> SoftmaxSoFar:
        highest, total, output = carry
        pages, start = _page_of(tables, first, index, page_size)
        keys, values, key_scales, value_scales = _gathered(layer, pages)
        keys = keys[:, :, :d]
        scores = jnp.einsum("nkrd,nkdg->nkrg", queries, keys, preferred_element_type=jnp.float32)
        if key_scales is not None:
            scores = scores * key_scales[:, :, None]
        if softcap is not None:
            scores = softcap * jnp.tanh(scores / softcap)
        within = lax.broadcast_to_rank(jnp.arange(page_size), max(start.ndim, 1))
        at, own = start + within, row_limits[:, :, None]
        most = own if ahead is None else row_reach[:, :, None]
        seen = _seen(at, own, most, window, chunk)
        seen = seen[:, None]
        if chosen is not None:
            axis = chosen.ndim - 1
            of_page = lax.dynamic_slice_in_dim(chosen, index * page_size, page_size, axis=axis)
            if chosen.ndim == 4:
                of_page = jnp.repeat(of_page, h // chosen.shape[1], axis=1)
                seen = seen & of_page.reshape(n, kv_heads, rows, page_size)
            else:
                seen = seen & jnp.tile(of_page, (1, h // kv_heads, 1))[:, None]
        scores = jnp.where(seen, scores, _MASKED)
        new_highest = jnp.maximum(highest, scores.max(-1))
        weights = jnp.exp(scores - new_highest[..., None])
        if chosen is not None:  # a page may hold none of a query's tokens before it has seen one
            weights = jnp.where(seen, weights, 0.0)
        decay = jnp.exp(highest - new_highest)
        if values is None:
            form, values, value_scales = "nkrg,nkdg->nkrd", keys, key_scales
        else:
            form = "nkrg,nkgd->nkrd"
        scaled = weights if value_scales is None else weights * value_scales[:, :, None]
        output = output * decay[..., None] + jnp.einsum(
            form, scaled, values, preferred_element_type=jnp.float32
        )
        return SoftmaxSoFar(new_highest, total * decay + weights.sum(-1), output)

    ends = (reach.max(1) + page_size - 1) // page_size
    trips = jnp.max(ends if first is None else ends - first)
    return lax.fori_loop(0, trips, one_page, before)


def _nothing(
    sinks: jax.Array | None, shape: tuple[int, int, int], width: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the highest scores, their sums and the output before any page is seen."""
    n, kv_heads, rows = shape
    zeros, output = jnp.zeros(shape, jnp.float32), jnp.zeros((*shape, width), jnp.float32)
    if sinks is None:
        return zeros + _MASKED, zeros, output
    of_rows = jnp.repeat(sinks.reshape(kv_heads, -1), rows * kv_heads // sinks.size, axis=1)
    return jnp.broadcast_to(of_rows[None], shape), zeros + 1.0, output


def _gathered(layer: LayerPages, pages: jax.Array) -> LayerPages:
    """One page of every sequence; int8 and float8 are widened here, while there are few numbers."""
    taken = jax.tree.map(lambda a: a.at[pages].get(mode="promise_in_bounds"), layer)
    if taken.keys.dtype not in HIGHEST:
        return taken
    return taken._replace(
        keys=taken.keys.astype(jnp.float32),
        values=None if taken.values is None else taken.values.astype(jnp.float32),
    )


def _first_pages(
    limits: jax.Array, window: int | None, chunk: int | None, page_size: int
) -> jax.Array | None:
    """i32[N]: first page of each sequence that any of its queries sees; None: page 0 of all.

    A row may see nothing of that page; the decay at its first page with a score zeroes what it
    accumulates there.
    """
    if window is None and chunk is None:
        return None
    starts = first_seen(limits, window, chunk)
    starts = jnp.where(limits > 0, starts, jnp.iinfo(jnp.int32).max)
    return jnp.clip(starts.min(1), 0, jnp.maximum(limits.max(1) - 1, 0)) // page_size


def _page_of(
    tables: jax.Array, first: jax.Array | None, index: jax.Array, page_size: int
) -> tuple[jax.Array, jax.Array]:
    """i32[N]: each sequence's page in this iteration, and the position of its first token."""
    if first is None:
        pages = lax.dynamic_index_in_dim(tables, index, axis=1, keepdims=False)
        return pages, jnp.asarray(index * page_size)  # a plain number without jit
    column = first + index
    inside = jnp.minimum(column, tables.shape[1] - 1)[:, None]
    return jnp.take_along_axis(tables, inside, axis=1)[:, 0], (column * page_size)[:, None, None]


def _seen(
    positions: jax.Array,
    limits: jax.Array,
    reach: jax.Array,
    window: int | None,
    chunk: int | None,
) -> jax.Array:
    positions = lax.broadcast_to_rank(positions, limits.ndim)
    seen = positions < reach
    if window is None and chunk is None:
        return seen
    return seen & (positions >= first_seen(limits, window, chunk))


KERNEL = WriteThenRead(paged_attention)
READING = XlaReading()
