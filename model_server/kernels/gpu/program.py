"""One GPU program of paged attention: some query rows of a KV head, one split of their context.

Written for Pallas's Triton backend: every dimension is a power of two, and at least 16 in products.
Online softmax (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from model_server.kernels.gpu.tiles import AttentionTiles, spans
from model_server.kernels.pages import LayerPages

MASKED = -1e30
LOG2_E = math.log2(math.e)  # GPUs have an instruction for exp2


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """Settings shared by all programs of a call; called with the refs of one of them."""

    tiles: AttentionTiles
    width: int
    softcap: float | None
    window: int | None
    chunk: int | None

    def __call__(
        self,
        q: Any,  # [rows, Q]: scaled so that scores are base-2 logarithms, natural before a soft cap
        layer: LayerPages,  # refs
        table: Any,  # i32[S/G]
        limits: Any,  # i32[rows]
        output: Any,  # f32[rows, W]
        highest: Any,  # f32[rows]
        total: Any,  # f32[rows]
    ) -> None:
        """Write these rows' results for their split; the sum is not yet divided by its total."""
        self.looking_ahead(q, layer, table, limits, None, output, highest, total)

    def looking_ahead(
        self,
        q: Any,
        layer: LayerPages,
        table: Any,
        limits: Any,
        reach: Any,  # i32[rows]: tokens that each row sees, those behind its own included, or None
        output: Any,
        highest: Any,
        total: Any,
    ) -> None:
        """As `__call__`, for rows that may see tokens behind their own; others are as before."""
        row_limits = limits[:]
        row_reach = row_limits if reach is None else reach[:]
        begin, end = self._context(row_limits, row_reach)
        head = pl.program_id(2)
        queries = [q[:, pl.ds(*span)] for span in spans(layer.keys.shape[3])]

        def trip(index: Any, found: _RunningSoftmax) -> _RunningSoftmax:
            at = index * self.tiles.tokens + jnp.arange(self.tiles.tokens)
            tokens = _Tokens.of(table, at, (at >= begin) & (at < end), layer, head)
            here, own = at[None], row_limits[:, None]
            seen = self._seen(here, own, own if reach is None else row_reach[:, None])
            return self._with(found, tokens, queries, seen)

        found = lax.fori_loop(*self._share(begin, end), trip, self._nothing())
        for (start, size), part in zip(spans(self.width), found.output, strict=True):
            output[:, pl.ds(start, size)] = part
        highest[:], total[:] = found.highest, found.total

    def _context(self, limits: jax.Array, reach: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Bounds of the tokens that any of these rows sees."""
        end = reach.max()
        if self.window is None and self.chunk is None:
            return jnp.zeros_like(end), end
        starts = jnp.where(limits > 0, self._first_seen(limits), end)
        return jnp.maximum(starts.min(), 0), end

    def _share(self, begin: jax.Array, end: jax.Array) -> tuple[jax.Array, jax.Array]:
        """First and last iteration of this program: an even split of the current context."""
        tokens, splits = self.tiles.tokens, self.tiles.splits
        first, last = lax.div(begin, tokens), lax.div(end + (tokens - 1), tokens)
        part = lax.div(last - first + (splits - 1), splits)
        start = first + pl.program_id(1) * part
        return start, jnp.minimum(start + part, last)

    def _seen(self, at: jax.Array, limits: jax.Array, reach: jax.Array) -> jax.Array:
        seen = at < reach
        if self.window is None and self.chunk is None:
            return seen
        return seen & (at >= self._first_seen(limits))

    def _first_seen(self, limits: jax.Array) -> jax.Array:
        """As `paged.first_seen`; Triton divides as C does."""
        if self.chunk is not None:
            return lax.div(jnp.maximum(limits - 1, 0), self.chunk) * self.chunk
        return limits - (self.window or 0)

    def _nothing(self) -> _RunningSoftmax:
        zeros = jnp.zeros(self.tiles.rows, jnp.float32)
        outputs = [jnp.zeros((self.tiles.rows, size), jnp.float32) for _, size in spans(self.width)]
        return _RunningSoftmax(zeros + MASKED, zeros, outputs)

    def _with(
        self, found: _RunningSoftmax, tokens: _Tokens, queries: list[jax.Array], seen: jax.Array
    ) -> _RunningSoftmax:
        layer, keys = tokens.layer, tokens.columns(tokens.layer.keys)
        scores = jnp.where(seen, self._scores(tokens, queries, keys), MASKED)
        highest = jnp.maximum(found.highest, scores.max(1))
        weights = jnp.where(seen, jnp.exp2(scores - highest[:, None]), 0.0)
        decay = jnp.exp2(found.highest - highest)
        total = found.total * decay + weights.sum(1)
        if layer.values is None:
            values, scales = keys, layer.key_scales
        else:
            values, scales = tokens.columns(layer.values), layer.value_scales
        weights = tokens.scaled(weights, scales).astype(values[0].dtype)
        output = [
            part * decay[:, None] + _product(weights, value, 0)
            for part, value in zip(found.output, values, strict=True)
        ]
        return _RunningSoftmax(highest, total, output)

    def _scores(
        self, tokens: _Tokens, queries: list[jax.Array], keys: list[jax.Array]
    ) -> jax.Array:
        parts = [_product(q, k, 1) for q, k in zip(queries, keys, strict=True)]
        scores = tokens.scaled(sum(parts[1:], parts[0]), tokens.layer.key_scales)
        if self.softcap is None:
            return scores
        return LOG2_E * self.softcap * jnp.tanh(scores / self.softcap)


class _RunningSoftmax(NamedTuple):
    highest: jax.Array  # f32[rows]
    total: jax.Array  # f32[rows]
    output: list[jax.Array]  # f32[rows, span] for each span of W


class _Tokens(NamedTuple):
    """Cached tokens of one iteration, by page and offset."""

    layer: LayerPages  # refs
    head: jax.Array  # i32[]
    pages: jax.Array  # i32[tokens]
    offsets: jax.Array  # i32[tokens]
    live: jax.Array  # bool[tokens]: other tokens are never read, not even to be multiplied by 0

    @classmethod
    def of(
        cls, table: Any, at: jax.Array, live: jax.Array, layer: LayerPages, head: jax.Array
    ) -> _Tokens:
        page_size = layer.keys.shape[2]
        pages = plgpu.load(table.at[lax.div(at, page_size)], mask=live, other=0)
        return cls(layer, head, pages, lax.rem(at, page_size), live)

    def columns(self, ref: Any) -> list[jax.Array]:
        """[tokens, span] for each span of the keys or values, in the product dtype."""
        found = [self._span(ref, start, size) for start, size in spans(ref.shape[3])]
        return [part.astype(product_dtype(ref.dtype)) for part in found]

    def _span(self, ref: Any, start: int, size: int) -> jax.Array:
        # Index every dimension by array, though slices would do for columns: interpret mode
        # supports masked loads by arrays alone or by slices alone.
        column = jnp.broadcast_to(start + jnp.arange(size), (self.live.size, size))
        page, offset, mask = (
            jnp.broadcast_to(each[:, None], column.shape)
            for each in (self.pages, self.offsets, self.live)
        )
        if start + size > ref.shape[3]:
            mask &= column < ref.shape[3]
        place = ref.at[page, self.head, offset, column]
        return plgpu.load(place, mask=mask, other=jnp.zeros((), ref.dtype))

    def scaled(self, numbers: jax.Array, scales: Any) -> jax.Array:
        """f32[rows, tokens] times each token's scale, if any."""
        if scales is None:
            return numbers
        place = scales.at[self.pages, self.head, self.offsets]
        return numbers * plgpu.load(place, mask=self.live, other=0)[None]


def product_dtype(dtype: Any) -> Any:
    """Dtype of products: int8 and float8 are exact in bfloat16."""
    return jnp.dtype(jnp.bfloat16) if jnp.dtype(dtype).itemsize == 1 else dtype


def _product(a: jax.Array, b: jax.Array, contracted: int) -> jax.Array:
    """Product with f32 sums; float32 inputs keep full precision, which tensor cores would cut."""
    return lax.dot_general(
        a,
        b,
        (((1,), (contracted,)), ((), ())),
        precision=lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
