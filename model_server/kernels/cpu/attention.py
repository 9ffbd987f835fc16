"""Paged attention with the native kernels: decode rows and prompt blocks in one call.

New keys and values are written into the pages in place. Pages of int8 and float8 are written by
XLA, which computes their scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from model_server.kernels import xla
from model_server.kernels.cpu.states import convolve, take_in
from model_server.kernels.paged import NewTokens, PagedBatch, Scores, SeenPages
from model_server.kernels.pages import HIGHEST, LayerPages, Shapes, key_major_shapes, write
from model_server.kernels.states import Filter, MemoryTokens, StatePlaces

MOST_DIM = 1152  # numbers of a key or value

_NONE = np.zeros((0, 0, 0), np.float32)
_NO_FLAGS = np.zeros((0, 0, 0, 0), bool)


def supports(layer: LayerPages) -> bool:
    """True if the kernel computes attention to these pages."""
    value_dim = 0 if layer.values is None else layer.values.shape[3]
    return supports_heads(layer.keys.shape[2], value_dim)


def supports_heads(key_dim: int, value_dim: int) -> bool:
    return max(key_dim, value_dim) <= MOST_DIM


def unwritten(layer: LayerPages, sharding: jax.sharding.Sharding | None = None) -> LayerPages:
    """Return pages of these shapes with any numbers in them: the kernel reads none before it is
    written. The process then grows as pages are used, and a load writes no gigabyte of zeros.

    Pages that XLA attends to are zeros: it multiplies masked numbers by zero, and none of them may
    be NaN.
    """
    return _making(layer, sharding)()


@lru_cache(8)  # layers are alike: one program makes them all
def _making(layer: LayerPages, sharding: jax.sharding.Sharding | None) -> Callable[[], LayerPages]:
    make = _unwritten if supports(layer) else jnp.zeros

    def made() -> LayerPages:
        return jax.tree.map(lambda of: make(of.shape, of.dtype), layer)

    return jax.jit(made, out_shardings=sharding)


def _unwritten(shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    return jax.ffi.ffi_call("sax_cpu_unwritten", jax.ShapeDtypeStruct(shape, dtype))()


def overwrite(held: jax.Array, index: jax.Array, rows: jax.Array) -> jax.Array:
    """As `pages.overwrite`, in place: XLA widens a whole pool of bfloat16 and narrows it again."""
    call = jax.ffi.ffi_call(
        "sax_cpu_overwrite",
        jax.ShapeDtypeStruct(held.shape, held.dtype),
        input_output_aliases={2: 0},
    )
    return call(index, rows, held)


@dataclass(frozen=True, slots=True)
class CpuAttention:
    """The kernel as the models call it, on one device."""

    @property
    def shapes(self) -> Shapes:
        return key_major_shapes

    def attend(
        self, batch: PagedBatch, layer: LayerPages, new: NewTokens, scores: Scores
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`; by XLA for pages that the kernel does not support."""
        if not supports(layer):
            return xla.KERNEL.attend(batch, layer, new, scores)
        layer = _written(batch, layer, new)
        attended = _attended(batch, layer, new.q, scores)
        if batch.block_ahead is None:
            return attended, layer
        decodes = batch.decode_tables.shape[0]
        looks = jnp.pad(batch.block_ahead.reshape(-1) > 0, (decodes, 0))[:, None, None]
        # A token's bits do not depend on images beside it: those that look ahead alone are XLA's.
        attended = jax.lax.cond(
            jnp.any(looks),
            lambda made: jnp.where(looks, _attended_by_xla(batch, layer, new.q, scores), made),
            lambda made: made,
            attended,
        )
        return attended, layer

    def attention(
        self,
        q: jax.Array,
        seen: Sequence[SeenPages],
        *,
        scale: float,
        sinks: jax.Array | None = None,
    ) -> jax.Array:
        """As `PageReading.attention`."""
        if not all(supports(each.layer) for each in seen):
            return xla.READING.attention(q, seen, scale=scale, sinks=sinks)
        flat, found = q.reshape(-1, *q.shape[2:]), None
        for index, each in enumerate(seen):
            scores = Scores(scale, None, each.window, sinks)
            more = index + 1 < len(seen)
            found = _attended_over(each.layer, flat, scores, _rows(each), found, more)
        assert found is not None, "queries see some pages"
        return found.sums.reshape(*q.shape[:3], -1)

    def scores(self, pages: SeenPages, queries: jax.Array, weights: jax.Array | None) -> jax.Array:
        """As `PageReading.scores`."""
        layer, tables, limits, *_ = pages
        width = queries.shape[: 3 if weights is None else 2]
        made = jax.ShapeDtypeStruct((*width, tables.shape[1] * layer.keys.shape[3]), jnp.float32)
        call = jax.ffi.ffi_call("sax_cpu_score_tokens", made)
        return call(
            queries,
            _NONE if weights is None else weights,
            layer.keys,
            _NONE if layer.key_scales is None else layer.key_scales,
            tables,
            limits,
            first=np.int32(layer.keys.shape[2] - queries.shape[3]),
        )

    def convolve(
        self, held: jax.Array, places: StatePlaces, counts: jax.Array, x: jax.Array, by: Filter
    ) -> tuple[jax.Array, jax.Array]:
        """As `StateKernel.convolve`."""
        return convolve(held, places, counts, x, by.taps, by.offset)

    def take_in(
        self, memory: jax.Array, places: StatePlaces, counts: jax.Array, tokens: MemoryTokens
    ) -> tuple[jax.Array, jax.Array]:
        """As `StateKernel.take_in`."""
        return take_in(memory, places, counts, tokens)


_TOKENS = 64  # of a page in which the kernel lays out whole inputs


def attend_whole(
    q: jax.Array,  # f32[B, T, H, Q]
    k: jax.Array,  # f32[B, T, K, Q]
    v: jax.Array | None,  # f32[B, T, K, W]; None: the keys double as values
    firsts: jax.Array,  # i32[B, T]: the first token that each sees
    limits: jax.Array,  # i32[B, T]: the one behind the last; 0: it sees none
    scores: Scores,  # without a window or chunk of their own
) -> jax.Array:
    """Return f32[B * T, H, W]: attention among the tokens of each input, which no page keeps.

    A token that sees nothing gets zeros.
    """
    inputs, length, kv_heads, size = k.shape
    width = size if v is None else v.shape[3]
    pages = inputs * -(-length // _TOKENS)
    room = pages * _TOKENS * kv_heads * (size if v is None else size + width)
    made = ((inputs * length, q.shape[2], width), (room,))
    call = jax.ffi.ffi_call(
        "sax_cpu_attend_whole", [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in made]
    )
    flat = (each.reshape(-1, *each.shape[2:]).astype(jnp.float32) for each in (q, k))
    attended, _ = call(
        *flat,
        _NONE if v is None else v.reshape(-1, kv_heads, width).astype(jnp.float32),
        firsts,
        limits,
        jnp.zeros((0,), jnp.float32) if scores.sinks is None else scores.sinks,
        scale=np.float32(scores.scale),
        softcap=np.float32(scores.softcap or 0.0),
    )
    return attended


def written(layer: LayerPages, k: jax.Array, v: jax.Array, offsets: jax.Array) -> LayerPages:
    """Return pages that each belong to a row, with its new keys and values f32[B, T, K, Q] at
    offsets i32[B, T]."""
    places = offsets.astype(jnp.int32)
    pages = jnp.broadcast_to(jnp.arange(len(k), dtype=jnp.int32)[:, None], places.shape)
    k, v = (each.reshape(-1, *each.shape[2:]) for each in (k, v))
    return _put(layer, k, v, pages.reshape(-1), places.reshape(-1))


def _written(batch: PagedBatch, layer: LayerPages, new: NewTokens) -> LayerPages:
    if layer.keys.dtype in HIGHEST:
        return write(layer, new.k, new.v, batch.pages, batch.offsets)
    return _put(layer, new.k, new.v, batch.pages, batch.offsets)


def _put(
    layer: LayerPages, k: jax.Array, v: jax.Array | None, pages: jax.Array, offsets: jax.Array
) -> LayerPages:
    values = jnp.zeros((0, 0, 0, 0), layer.keys.dtype) if layer.values is None else layer.values
    given = k, _NONE if v is None else v
    call = jax.ffi.ffi_call(
        "sax_cpu_write",
        [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (layer.keys, values)],
        input_output_aliases={4: 0, 5: 1},
    )
    keys, values = call(*given, pages, offsets, layer.keys, values)
    return layer._replace(keys=keys, values=None if layer.values is None else values)


def _attended_by_xla(
    batch: PagedBatch, layer: LayerPages, q: jax.Array, scores: Scores
) -> jax.Array:
    """As `_attended`, for steps with images whose tokens see those after them."""
    decodes, (blocks, size) = batch.decode_tables.shape[0], batch.block_limits.shape
    read = partial(xla.paged_attention, **scores._asdict())
    prompts = q[decodes:].reshape(blocks, size, *q.shape[1:])
    parts = [
        read(q[:decodes, None], layer, batch.decode_tables, batch.decode_limits),
        read(prompts, layer, batch.block_tables, batch.block_limits, ahead=batch.block_ahead),
    ]
    return jnp.concatenate([each.reshape(-1, q.shape[1], each.shape[-1]) for each in parts])


class _TableRows(NamedTuple):
    """Decode rows, then blocks of prompts, as in `PagedBatch`; with the tokens they attend to."""

    decode_tables: jax.Array
    decode_limits: jax.Array
    block_tables: jax.Array
    block_limits: jax.Array
    decode_chosen: Any = _NO_FLAGS  # bool[D, J, 1, S], or of no size: all that they see
    block_chosen: Any = _NO_FLAGS  # bool[N, J, C, S]


class _SoftmaxSums(NamedTuple):
    sums: jax.Array  # f32[T, H, W]: divided, unless there is more to attend to
    states: jax.Array  # f32[T, H, 2]: highest score and total of each softmax; or of no size


def _attended(batch: PagedBatch, layer: LayerPages, q: jax.Array, scores: Scores) -> jax.Array:
    rows = _TableRows(
        batch.decode_tables, batch.decode_limits, batch.block_tables, batch.block_limits
    )
    return _attended_over(layer, q, scores, rows).sums


def _rows(seen: SeenPages) -> _TableRows:
    """Single queries are decodes: threads share out the keys of each."""
    _, tables, limits, _, chosen = seen
    flags = _NO_FLAGS if chosen is None else chosen if chosen.ndim == 4 else chosen[:, None]
    none, (_, columns) = jnp.zeros((0, 0), jnp.int32), tables.shape
    if limits.shape[1] == 1:
        return _TableRows(tables, limits, none, none, decode_chosen=flags)
    nobody = jnp.zeros((0, columns), jnp.int32)
    return _TableRows(nobody, none, tables, limits, block_chosen=flags)


def _attended_over(
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    scores: Scores,
    rows: _TableRows,
    before: _SoftmaxSums | None = None,  # of other pages
    more: bool = False,
) -> _SoftmaxSums:
    width = q.shape[2] if layer.values is None else layer.values.shape[3]
    values = jnp.zeros((0, 0, 0, 0), layer.keys.dtype) if layer.values is None else layer.values
    states = (*q.shape[:2], 2) if more else (0, 0, 0)
    made = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*q.shape[:2], width), states)]
    call = jax.ffi.ffi_call("sax_cpu_attend_over_pages", made)
    *where, decode_chosen, block_chosen = rows
    sums, states = call(
        q,
        layer.keys,
        values,
        _NONE if layer.key_scales is None else layer.key_scales,
        _NONE if layer.value_scales is None else layer.value_scales,
        *where,
        jnp.zeros((0,), jnp.float32) if scores.sinks is None else scores.sinks,
        decode_chosen,
        block_chosen,
        *(before or (_NONE, _NONE)),
        scale=np.float32(scores.scale),
        softcap=np.float32(scores.softcap or 0.0),
        window=np.int32(scores.window or 0),
        chunk=np.int32(scores.chunk or 0),
    )
    return _SoftmaxSums(sums, states)
