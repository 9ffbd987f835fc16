"""Sparse attention: each query attends to the cached tokens that it scores highest.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp". A token caches one vector that all heads share, and
behind it, as its last numbers, a key for choosing. A query scores that key with heads of its own:
relu(query · key), weighted and added up. All scores are computed and all pages read, so memory and
time are those of attention to everything. TPUs have kernels for it; elsewhere it is plain XLA.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

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


class Chosen(NamedTuple):
    """Tokens that the queries of a flat batch attend to; None: all that they see."""

    decodes: jax.Array | None  # bool[B, 1, S]
    blocks: jax.Array | None  # bool[N, C, S]


EVERY = Chosen(None, None)


class Lent(NamedTuple):
    """What a layer attends to that keeps no vectors of its own: an earlier layer's."""

    keys: jax.Array  # f32[T, 1, N]: those of the step's tokens, at least as wide as queries
    pages: LayerPages  # with these written


@runtime_checkable
class ChoosingKernel(Protocol):
    """Attends to chosen tokens in pages of its own."""

    def attend_to_chosen(
        self,
        batch: PagedBatch,
        layer: LayerPages,
        q: jax.Array,
        k: jax.Array,
        choosing: Choosing | Chosen,
        *,
        most: int,
        scale: float,
    ) -> tuple[jax.Array, LayerPages, Chosen]:
        """As `attend_to_chosen`, over pages."""
        ...


def attend_to_chosen(
    batch: PagedBatch,
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    k: jax.Array | None,  # f32[T, 1, Q + I]: the last I numbers are the key for choosing
    choosing: Choosing | Chosen,  # Chosen: by a layer before, and I is 0
    *,
    most: int,  # tokens that each query attends to
    scale: float,
    sinks: jax.Array | None = None,  # f32[H], as in `paged.Scores`
    lent: Lent | None = None,  # then `k` is the key for choosing alone, None: it does not choose
) -> tuple[jax.Array, LayerPages, Chosen]:
    """Write the new vectors, then attend. Returns f32[T, H, Q] or more, mixed of whole vectors.

    Whole inputs are read without pages. Raises KernelRefusal if the kernel has other pages and is
    no `ChoosingKernel`, which takes no sinks and nothing lent.
    """
    if isinstance(batch.kernel, ChoosingKernel) and sinks is None and lent is None:
        assert k is not None, "a layer to which nothing is lent has keys"
        return batch.kernel.attend_to_chosen(batch, layer, q, k, choosing, most=most, scale=scale)
    seen = k if lent is None else lent.keys
    assert seen is not None, "a layer to which nothing is lent has keys"
    padded = jnp.pad(q, ((0, 0), (0, 0), (0, seen.shape[2] - q.shape[2])))
    if isinstance(batch.kernel, WholeInputs) and batch.kernel.causal:
        mixed, chosen = _whole(batch, padded, seen, k, choosing, most, scale, sinks)
        return mixed, layer, Chosen(None, chosen)
    if batch.kernel.shapes is not key_major_shapes or isinstance(batch.kernel, WholeInputs):
        raise KernelRefusal(
            "attention to chosen tokens is computed over pages of plain XLA or of TPUs only, "
            "and no query chooses tokens after its own"
        )
    split = batch.split
    if k is not None:
        layer = write(
            layer, k if split is None else split.gathered(k), None, batch.pages, batch.offsets
        )
    attended = layer if lent is None else lent.pages
    return _paged(batch, layer, attended, padded, choosing, most, scale, sinks)


def _paged(
    batch: PagedBatch,
    layer: LayerPages,
    attended: LayerPages,
    q: jax.Array,
    choosing: Choosing | Chosen,
    most: int,
    scale: float,
    sinks: jax.Array | None,
) -> tuple[jax.Array, LayerPages, Chosen]:
    """As `attend_to_chosen`, of pages that are written and queries as wide as attended keys."""
    split, decodes = batch.split, batch.decode_tables.shape[0]

    def run(
        rows: slice, tables: jax.Array, limits: jax.Array, before: jax.Array | None
    ) -> tuple[jax.Array, jax.Array | None]:
        flat = (q, *choosing) if isinstance(choosing, Choosing) else (q,)
        parts = [each[rows].reshape(limits.shape[0], -1, *each.shape[1:]) for each in flat]
        if split is not None:
            parts = [split.queries(each) for each in parts]
            tables, limits = split.queries(tables), split.queries(limits)
        chosen = before
        if isinstance(choosing, Choosing):
            chosen = choose(layer, parts[1], parts[2], tables, limits, most)
        mixed = xla.paged_attention(
            parts[0], attended, tables, limits, scale=scale, sinks=sinks, chosen=chosen
        )
        return mixed.reshape(-1, *mixed.shape[2:]), chosen

    given = choosing if isinstance(choosing, Chosen) else Chosen(None, None)
    mixed, first = run(slice(0, decodes), batch.decode_tables, batch.decode_limits, given.decodes)
    if not batch.block_tables.shape[0]:
        return mixed, layer, Chosen(first, None)
    rest, second = run(slice(decodes, None), batch.block_tables, batch.block_limits, given.blocks)
    return jnp.concatenate([mixed, rest]), layer, Chosen(first, second)


def _whole(
    batch: PagedBatch,
    q: jax.Array,
    attended: jax.Array,  # f32[T, 1, N]
    k: jax.Array | None,
    choosing: Choosing | Chosen,
    most: int,
    scale: float,
    sinks: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """As `attend_to_chosen`, for blocks that each hold one input: its only page."""
    inputs, length = batch.block_limits.shape
    tables, limits = jnp.arange(inputs)[:, None], batch.block_limits

    def blocks(each: jax.Array) -> jax.Array:
        return each.reshape(inputs, length, *each.shape[1:])

    def page(keys: jax.Array) -> LayerPages:
        return LayerPages(blocks(keys).transpose(0, 2, 3, 1), None)

    if isinstance(choosing, Chosen):
        chosen = choosing.blocks
    else:
        by, weights = map(blocks, choosing)
        assert k is not None, "a layer that chooses has keys to choose by"
        chosen = choose(page(k), by, weights, tables, limits, most)
    mixed = xla.paged_attention(
        blocks(q), page(attended), tables, limits, scale=scale, sinks=sinks, chosen=chosen
    )
    return mixed.reshape(-1, *mixed.shape[2:]), chosen


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
