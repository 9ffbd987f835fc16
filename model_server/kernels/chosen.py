"""Sparse attention in plain XLA: each query attends to the cached tokens that it scores highest.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp". A token caches one vector that all heads share, and
behind it, as its last numbers, a key for choosing. A query scores that key with heads of its own:
relu(query · key), weighted and added up. All scores are computed and all pages read, so memory and
time are those of attention to everything.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels import xla
from model_server.kernels.paged import KernelRefusal, PagedBatch
from model_server.kernels.pages import LayerPages, key_major_shapes, write
from model_server.kernels.whole import WholeInputs


class Choosing(NamedTuple):
    """Vectors of the flat batch that choose."""

    queries: jax.Array  # f32[T, J, I]: J heads, scaled
    weights: jax.Array  # f32[T, J]


def attend_to_chosen(
    batch: PagedBatch,
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    k: jax.Array,  # f32[T, 1, Q + I]: the last I numbers are the key for choosing
    choosing: Choosing,
    *,
    most: int,  # tokens that each query attends to
    scale: float,
) -> tuple[jax.Array, LayerPages]:
    """Write the new vectors, then attend. Returns f32[T, H, Q + I], mixed of whole vectors.

    Whole inputs are read without pages. Raises KernelRefusal for pages that are laid out otherwise.
    """
    if isinstance(batch.kernel, WholeInputs) and batch.kernel.causal:
        return _whole(batch, q, k, choosing, most, scale), layer
    if batch.kernel.shapes is not key_major_shapes or isinstance(batch.kernel, WholeInputs):
        raise KernelRefusal(
            "attention to chosen tokens is computed over pages of plain XLA only, "
            "and no query chooses tokens after its own"
        )
    split, decodes = batch.split, batch.decode_tables.shape[0]
    layer = write(
        layer, k if split is None else split.gathered(k), None, batch.pages, batch.offsets
    )
    padded = jnp.pad(q, ((0, 0), (0, 0), (0, k.shape[2] - q.shape[2])))

    def run(rows: slice, blocks: int, tables: jax.Array, limits: jax.Array) -> jax.Array:
        parts = [each[rows].reshape(blocks, -1, *each.shape[1:]) for each in (padded, *choosing)]
        if split is not None:
            parts = [split.queries(each) for each in parts]
            tables, limits = split.queries(tables), split.queries(limits)
        queries, by, weights = parts
        chosen = choose(layer, by, weights, tables, limits, most)
        mixed = xla.paged_attention(queries, layer, tables, limits, scale=scale, chosen=chosen)
        return mixed.reshape(-1, *mixed.shape[2:])

    made = [run(slice(0, decodes), decodes, batch.decode_tables, batch.decode_limits)]
    if blocks := batch.block_tables.shape[0]:
        made.append(run(slice(decodes, None), blocks, batch.block_tables, batch.block_limits))
    return jnp.concatenate(made), layer


def _whole(
    batch: PagedBatch, q: jax.Array, k: jax.Array, choosing: Choosing, most: int, scale: float
) -> jax.Array:
    """As `attend_to_chosen`, for blocks that each hold one input: its only page."""
    inputs, length = batch.block_limits.shape
    layer = LayerPages(k.reshape(inputs, length, 1, -1).transpose(0, 2, 3, 1), None)
    padded = jnp.pad(q, ((0, 0), (0, 0), (0, k.shape[2] - q.shape[2])))
    queries, by, weights = (
        each.reshape(inputs, length, *each.shape[1:]) for each in (padded, *choosing)
    )
    tables = jnp.arange(inputs)[:, None]
    chosen = choose(layer, by, weights, tables, batch.block_limits, most)
    mixed = xla.paged_attention(
        queries, layer, tables, batch.block_limits, scale=scale, chosen=chosen
    )
    return mixed.reshape(-1, *mixed.shape[2:])


def choose(
    layer: LayerPages,
    queries: jax.Array,  # f32[N, C, J, I]
    weights: jax.Array,  # f32[N, C, J]
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    most: int,
) -> jax.Array | None:
    """Return bool[N, C, S], the tokens that each query attends to; None: all that it sees."""
    page_size = layer.keys.shape[3]
    tokens = tables.shape[1] * page_size
    if tokens <= most:
        return None
    first = layer.keys.shape[2] - queries.shape[3]
    scores = jnp.full((*limits.shape, tokens), -jnp.inf)

    def one_page(index: jax.Array, scores: jax.Array) -> jax.Array:
        pages = lax.dynamic_index_in_dim(tables, index, axis=1, keepdims=False)
        keys = layer.keys.at[pages, 0, first:].get(mode="promise_in_bounds")  # [N, I, G]
        found = jnp.einsum(
            "ncji,nig->ncjg", queries, keys.astype(jnp.float32), precision=lax.Precision.HIGHEST
        )
        if layer.key_scales is not None:
            scales = layer.key_scales.at[pages, 0].get(mode="promise_in_bounds")
            found = found * scales[:, None, None]
        found = jnp.einsum("ncj,ncjg->ncg", weights, jax.nn.relu(found))
        at = lax.broadcast_to_rank(index * page_size + jnp.arange(page_size), 3)
        seen = at < limits[..., None]
        found = jnp.where(seen, found, -jnp.inf)
        return lax.dynamic_update_slice_in_dim(scores, found, index * page_size, axis=2)

    trips = (jnp.max(limits) + page_size - 1) // page_size
    scores = lax.fori_loop(0, trips, one_page, scores)
    _, highest = lax.top_k(scores, most)
    return jnp.put_along_axis(
        jnp.zeros(scores.shape, bool), highest, jnp.bool_(True), axis=-1, inplace=False
    )
