"""Sparse attention: each query attends to the cached tokens that it scores highest.

Source: DeepSeek-AI 2025, "DeepSeek-V3.2-Exp". A token caches one vector that all heads share, and
behind it, as its last numbers, a key for choosing. A query scores that key with heads of its own:
relu(query · key), weighted and added up. All scores are computed and all pages read, so memory and
time are those of attention to everything. TPUs have kernels for it, and CPUs for the scores and for
attention; elsewhere it is plain XLA.

Tokens may be chosen by pools (Z.ai 2026, "GLM-5.3 Flash"; transformers' `Glm5NextTextIndexer`):
behind its key a token caches how much each number of it counts in the mean of its pool. Queries
score the means of the pools that they see whole; the tokens behind the last of them are always
seen. On TPUs and GPUs this is plain XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax

from model_server.kernels.cpu.served import reading_of
from model_server.kernels.paged import KernelRefusal, PagedBatch, PageReading, SeenPages
from model_server.kernels.pages import LayerPages, key_major_shapes, write
from model_server.kernels.row_sums import weighted_sum
from model_server.kernels.whole import WholeInputs
from model_server.kernels.xla import READING


class Choosing(NamedTuple):
    """Vectors of the flat batch that choose."""

    queries: jax.Array  # f32[T, J, I]: J heads, scaled
    weights: jax.Array  # f32[T, J]


class Chosen(NamedTuple):
    """Tokens that the queries of a flat batch attend to; None: all that they see."""

    decodes: jax.Array | None  # bool[B, 1, S]
    blocks: jax.Array | None  # bool[N, C, S]


EVERY = Chosen(None, None)
# what reads pages, which pages, f32[N, C, J, I], f32[N, C, J] -> as `choose`
_Choose = Callable[[PageReading, SeenPages, jax.Array, jax.Array], jax.Array | None]


class Lent(NamedTuple):
    """Keys and pages of an earlier layer, for one that keeps none of its own."""

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
    # f32[T, 1, Q + I]: the last I numbers are the key for choosing; of pools, Q + 2 I: and counts
    k: jax.Array | None,
    choosing: Choosing | Chosen,  # Chosen: by a layer before, and I is 0
    *,
    most: int,  # tokens that each query attends to
    scale: float,
    sinks: jax.Array | None = None,  # f32[H], as in `paged.Scores`
    pools: jax.Array | None = None,  # f32[P, I], as of `choose_pools`; None: token by token
    lent: Lent | None = None,  # then `k` is the key for choosing alone, None: it does not choose
) -> tuple[jax.Array, LayerPages, Chosen]:
    """Write the new vectors, then attend. Returns f32[T, H, Q] or more, mixed of whole vectors.

    Whole inputs are read without pages. Raises KernelRefusal if the kernel has other pages and is
    no `ChoosingKernel`, which takes no sinks, no pools and nothing lent.
    """
    plain = sinks is None and pools is None and lent is None
    if isinstance(batch.kernel, ChoosingKernel) and plain:
        assert k is not None, "a layer to which nothing is lent has keys"
        return batch.kernel.attend_to_chosen(batch, layer, q, k, choosing, most=most, scale=scale)
    seen = k if lent is None else lent.keys
    assert seen is not None, "a layer to which nothing is lent has keys"
    by = partial(choose, most=most) if pools is None else partial(choose_pools, pools, most=most)
    if isinstance(batch.kernel, WholeInputs) and batch.kernel.causal:
        mixed, chosen = _whole(batch, q, seen, k, choosing, by, scale, sinks)
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
    return _paged(batch, layer, attended, q, choosing, by, scale, sinks)


def _paged(
    batch: PagedBatch,
    layer: LayerPages,
    attended: LayerPages,
    q: jax.Array,
    choosing: Choosing | Chosen,
    choose: _Choose,
    scale: float,
    sinks: jax.Array | None,
) -> tuple[jax.Array, LayerPages, Chosen]:
    """As `attend_to_chosen`, of pages that are written."""
    split, decodes = batch.split, batch.decode_tables.shape[0]
    reading = reading_of(batch.kernel)

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
            chosen = choose(reading, SeenPages(layer, tables, limits), parts[1], parts[2])
        seen = SeenPages(attended, tables, limits, chosen=chosen)
        mixed = reading.attention(parts[0], [seen], scale=scale, sinks=sinks)
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
    choose: _Choose,
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
        chosen = choose(READING, SeenPages(page(k), tables, limits), by, weights)
    seen = SeenPages(page(attended), tables, limits, chosen=chosen)
    mixed = READING.attention(blocks(q), [seen], scale=scale, sinks=sinks)
    return mixed.reshape(-1, *mixed.shape[2:]), chosen


def choose(
    reading: PageReading,
    pages: SeenPages,
    queries: jax.Array,  # f32[N, C, J, I]
    weights: jax.Array,  # f32[N, C, J]
    *,
    most: int,
) -> jax.Array | None:
    """Return bool[N, C, S], the tokens that each query attends to; None: all that it sees."""
    if pages.tables.shape[1] * pages.layer.keys.shape[3] <= most:
        return None
    return highest(reading.scores(pages, queries, weights), most)


_TOGETHER = 16  # means in a page: the CPU kernels compute the scores of so many side by side


def choose_pools(
    pools: jax.Array,  # f32[P, I]: added to how much a key counts, by its place in a pool
    reading: PageReading,
    pages: SeenPages,
    queries: jax.Array,  # f32[N, C, J, I]
    weights: jax.Array,  # f32[N, C, J]
    *,
    most: int,
) -> jax.Array | None:
    """As `choose`, of whole pools of P tokens, which `most` is a multiple of."""
    layer, tables, limits, *_ = pages
    page_size, size = layer.keys.shape[3], len(pools)
    tokens = tables.shape[1] * page_size
    if tokens <= most:
        return None
    means = means_of_spans(
        tables,
        jnp.max(limits),
        (page_size, size, pools.shape[1]),
        lambda columns, _: _means_of_pools(layer, columns, pools),
    )
    seen = SeenPages(*means, limits // size)
    scores = reading.scores(seen, queries, weights)
    last = lax.broadcast_to_rank(jnp.arange(scores.shape[2]), 3) == limits[..., None] // size
    kept = highest(scores, most // size) | last
    return jnp.repeat(kept, size, axis=-1)[..., :tokens]


def means_of_spans(
    tables: jax.Array,  # i32[N, S/G]
    most: jax.Array,  # i32[]: tokens of the longest sequence
    sizes: tuple[int, int, int],  # G tokens of a page, P of a group, I numbers of a mean
    # some of the tables i32[N, columns], and the place of their first token -> f32[N, M, I]
    means: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[LayerPages, jax.Array]:
    """Return pages of the means of groups of tokens that lie in other pages, and their tables.

    Those of groups that no sequence has whole are any numbers.
    """
    page_size, size, width = sizes
    span = math.lcm(page_size, size * _TOGETHER)
    columns, count = span // page_size, span // size
    tables = jnp.pad(tables, ((0, 0), (0, -tables.shape[1] % columns)))
    rows, spans = len(tables), tables.shape[1] // columns

    def one_span(index: jax.Array, held: jax.Array) -> jax.Array:
        where = lax.dynamic_slice_in_dim(tables, index * columns, columns, axis=1)
        found = means(where, index * span).swapaxes(1, 2)
        return lax.dynamic_update_slice_in_dim(held, found[:, None], index, axis=1)

    held = jnp.zeros((rows, spans, width, count), jnp.float32)
    held = lax.fori_loop(0, (most + span - 1) // span, one_span, held)
    where = jnp.arange(rows * spans, dtype=jnp.int32).reshape(rows, spans)
    return LayerPages(held.reshape(-1, 1, width, count), None), where


def _means_of_pools(layer: LayerPages, tables: jax.Array, pools: jax.Array) -> jax.Array:
    """f32[N, M, I]: the means of the M pools in these pages, i32[N, columns], of each sequence."""
    size, width = pools.shape
    first = layer.keys.shape[2] - 2 * width
    cached = layer.keys.at[tables, 0, first:].get(mode="promise_in_bounds").astype(jnp.float32)
    if layer.key_scales is not None:
        scales = layer.key_scales.at[tables, 0].get(mode="promise_in_bounds")
        cached = cached * scales[:, :, None]
    cached = cached.transpose(0, 1, 3, 2).reshape(len(tables), -1, size, 2 * width)
    keys, counts = jnp.split(cached, 2, axis=-1)
    return weighted_sum(counts + pools[None, None], keys, axis=2)


def highest(scores: jax.Array, most: int) -> jax.Array:
    """Return bool[..., S]: the highest of f32[..., S], of each query; of equal ones the first."""
    _, places = lax.top_k(scores, most)
    return jnp.put_along_axis(
        jnp.zeros(scores.shape, bool), places, jnp.bool_(True), axis=-1, inplace=False
    )
