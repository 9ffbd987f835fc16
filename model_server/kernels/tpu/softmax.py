"""Inside the TPU kernel: the running softmax of one unit over its fetched blocks.

Milakov and Gimelshein 2018 (https://arxiv.org/abs/1805.02867). Sums and weights are f32; products
use bf16 unless pages hold f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.sizes import Tile

Ref = Any  # Pallas reference: device memory inside a kernel
_MASKED = -1e30


@dataclass(frozen=True, slots=True)
class Scoring:
    """Score parameters of a layer; queries are already scaled."""

    softcap: float | None
    window: int | None
    chunk: int | None  # a power of two
    products: jnp.dtype


@dataclass(frozen=True, slots=True)
class Queries:
    """Queries of a unit and their position in its sequence."""

    numbers: Ref  # [K, rows, lanes]
    tile: Tile
    per_query: int  # rows per query
    start: jax.Array  # cached tokens that the first query sees
    count: jax.Array
    runs: tuple[
        tuple[jax.Array, jax.Array], ...
    ] = ()  # begins and ends of tokens that see each other
    chosen: Ref | None = None  # [queries, tokens]: above 0 for those attended to; None: all are


@dataclass(frozen=True, slots=True)
class Softmax:
    """State in VMEM: highest score, sum of weights, weighted sum of values."""

    highest: Ref  # f32[K, rows, 1]
    total: Ref  # f32[K, rows, 1]
    output: Ref  # f32[K, rows, lanes]

    def clear(self, sinks: Ref | None) -> None:
        """Forget all blocks. sinks: f32[K, rows, 1], a score of each row that has no value."""
        if sinks is None:
            self.highest[...] = jnp.full(self.highest.shape, _MASKED, jnp.float32)
            self.total[...] = jnp.zeros(self.total.shape, jnp.float32)
        else:
            self.highest[...] = sinks[...]
            self.total[...] = jnp.ones(self.total.shape, jnp.float32)
        self.output[...] = jnp.zeros(self.output.shape, jnp.float32)

    def result(self) -> jax.Array:
        """f32[K, rows, lanes]; zeros for rows that saw nothing."""
        return self.output[...] / jnp.maximum(self.total[...], 1e-30)

    def add(self, queries: Queries, block: LayerPages, first: jax.Array, how: Scoring) -> None:
        """Add a block of Refs whose first token is at position `first`, tile by tile."""
        heads, rows, _ = queries.numbers.shape
        tile = queries.tile
        down = rows // tile.rows

        def one(index: jax.Array, _: None) -> None:
            at = (index // down * tile.heads, pl.multiple_of(index % down * tile.rows, tile.rows))
            self._add_tile(queries, block, first, how, at)

        if heads == tile.heads and down == 1:
            self._add_tile(queries, block, first, how, (0, 0))
        else:
            jax.lax.fori_loop(0, heads // tile.heads * down, one, None)

    def _add_tile(
        self, queries: Queries, block: LayerPages, first: jax.Array, how: Scoring, at: Any
    ) -> None:
        heads = pl.ds(at[0], queries.tile.heads)
        here = (heads, pl.ds(at[1], queries.tile.rows))
        keys = block.keys[heads].astype(how.products)
        q = queries.numbers[here].astype(how.products)
        scores = _product(q, keys, 2)
        if block.key_scales is not None:
            scores = scores * along(block.key_scales[heads], keys.shape[1])
        if how.softcap is not None:
            scores = how.softcap * jnp.tanh(scores / how.softcap)
        seen = _seen(queries, first, at[1], keys.shape[1], how)
        if queries.chosen is not None:
            seen &= _chosen(queries, queries.chosen, at[1])
        scores = jnp.where(seen, scores, _MASKED)
        old = self.highest[here]
        new = jnp.maximum(old, scores.max(-1, keepdims=True))
        weights = jnp.where(seen, jnp.exp(scores - new), 0.0)
        decay = jnp.exp(old - new)
        self.highest[here] = new
        self.total[here] = self.total[here] * decay + weights.sum(-1, keepdims=True)
        values = keys if block.values is None else block.values[heads].astype(how.products)
        scales = block.key_scales if block.value_scales is None else block.value_scales
        if scales is not None:
            # Lanes without a token hold garbage, possibly NaN.
            per_token = along(scales[heads], keys.shape[1])
            weights = jnp.where(seen, weights * per_token, 0.0)
        added = _product(weights.astype(how.products), values, 1)
        self.output[here] = self.output[here] * decay + added


def _product(left: jax.Array, right: jax.Array, over: int) -> jax.Array:
    """Per-head product in f32: last dimension of `left` with dimension `over` of `right`."""
    exact = left.dtype == jnp.float32
    return jax.lax.dot_general(
        left,
        right,
        (((2,), (over,)), ((0,), (0,))),
        precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


def along(scales: jax.Array, tokens: int) -> jax.Array:
    """Reshape [K, pages, 1, lanes], using only the first lanes, to [K, 1, tokens]."""
    pages = scales.shape[1]
    parts = [scales[:, page, :, : tokens // pages] for page in range(pages)]
    return parts[0] if pages == 1 else jnp.concatenate(parts, axis=-1)


def _seen(
    queries: Queries, first: jax.Array, row: jax.Array, tokens: int, how: Scoring
) -> jax.Array:
    """bool[1, rows, tokens]: tokens of the block that each row's query sees."""
    shape = (1, queries.tile.rows, tokens)
    query = _quotient(row + jax.lax.broadcasted_iota(jnp.int32, shape, 1), queries.per_query)
    at = first + jax.lax.broadcasted_iota(jnp.int32, shape, 2)
    limits = jnp.where(query < queries.count, queries.start + query, 0)
    seen = at < limits
    for begin, end in queries.runs:
        seen |= (limits > begin) & (limits <= end) & (at < end)
    if how.chunk is not None:
        return seen & (at >= (limits - 1) & -how.chunk)
    return seen if how.window is None else seen & (at >= limits - how.window)


def _chosen(queries: Queries, marks: Ref, row: jax.Array) -> jax.Array:
    """bool[1, rows, tokens]: tokens of the block that each row's query attends to."""
    count, tokens = marks.shape
    rows = queries.tile.rows
    if count == 1:
        return jnp.broadcast_to(marks[...], (rows, tokens))[None] > 0
    # One mark for the rows of a query, by a product: rows cannot be repeated.
    shape = (rows, count)
    query = _quotient(row + jax.lax.broadcasted_iota(jnp.int32, shape, 0), queries.per_query)
    own = query == jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    spread = jnp.dot(
        own.astype(jnp.float32).astype(marks.dtype), marks[...], preferred_element_type=jnp.float32
    )
    return spread[None] > 0


def _quotient(numbers: jax.Array, divisor: int) -> jax.Array:
    """Divide integers below 2048 by at most 2048: the vector unit can only multiply."""
    if divisor == 1:
        return numbers
    return (numbers * -(-(1 << 20) // divisor)) >> 20
