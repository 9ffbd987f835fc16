"""Attention among the tokens of whole inputs: nothing is cached, so no pages are read or written.

For passes that make no tokens: embeddings, classes and gradients. By the native kernels for those
that set the rows to compute; else plain XLA, which is differentiable and divides over a mesh as its
inputs are divided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from model_server.kernels.cpu.attention import attend_whole, supports_heads
from model_server.kernels.paged import NewTokens, PagedBatch, Scores
from model_server.kernels.pages import LayerPages, Shapes, key_major_shapes

_QUERIES = 512  # per product: bounds the scores in memory to this many rows


@dataclass(frozen=True, slots=True)
class WholeInputs:
    """A kernel over blocks that each hold one whole input, padded at its end."""

    causal: bool = True  # False: each token also sees those after it
    native: bool = False
    skips: bool = False  # padding: it gets zeros

    @property
    def shapes(self) -> Shapes:
        return key_major_shapes

    def attend(
        self, batch: PagedBatch, layer: LayerPages, new: NewTokens, scores: Scores
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`; `layer` is returned as it is."""
        inputs, length = batch.block_limits.shape
        q, k = (each.reshape(inputs, length, *each.shape[1:]) for each in (new.q, new.k))
        v = k if new.v is None else new.v.reshape(inputs, length, *new.v.shape[1:])
        seen = (batch.block_limits, batch.block_ahead)
        if self.native and supports_heads(k.shape[3], v.shape[3]):
            values, between = None if new.v is None else v, self._between(*seen, scores)
            return attend_whole(q, k, values, *between, scores), layer
        mixed = _in_parts(q, k, v, seen, scores, self.causal)
        return mixed.reshape(-1, *mixed.shape[2:]), layer

    def _between(
        self, limits: jax.Array, ahead: jax.Array | None, scores: Scores
    ) -> tuple[jax.Array, jax.Array]:
        """Return i32[B, T] each: the first token that each sees, and the one behind the last; 0: it
        sees none.
        """
        at, lengths = jnp.arange(limits.shape[1])[None], limits.max(1, keepdims=True)
        first, end = jnp.zeros_like(limits), lengths
        if scores.chunk is not None:
            first = jnp.broadcast_to(at // scores.chunk * scores.chunk, limits.shape)
            end = jnp.minimum(first + scores.chunk, lengths)
        elif scores.window is not None:
            back = scores.window - 1 if self.causal else scores.window // 2
            first = jnp.broadcast_to(jnp.maximum(at - back, 0), limits.shape)
            end = jnp.minimum(at + back + 1, lengths)
        end = jnp.minimum(at + 1, end) if self.causal else jnp.broadcast_to(end, limits.shape)
        if ahead is not None:
            end = jnp.maximum(end, jnp.minimum(limits + ahead, lengths))
        return first, jnp.where(limits > 0, end, 0) if self.skips else end


def whole_batch(
    lengths: jax.Array,
    columns: int,
    *,
    causal: bool = True,
    ahead: jax.Array | None = None,
    live: jax.Array | None = None,
) -> PagedBatch:
    """Describe inputs of `lengths` i32[B] in blocks of `columns` tokens, without pages.

    ahead: i32[B, T], as `PagedBatch.block_ahead`. live: the rows that native kernels compute, of no
    size: all; None: there are none.
    """
    rows = lengths.shape[0]
    none = jnp.zeros((0,), jnp.int32)
    at = jnp.arange(columns)[None]
    return PagedBatch(
        pages=none,
        offsets=none,
        decode_tables=none.reshape(0, 0),
        decode_limits=none.reshape(0, 1),
        block_tables=jnp.zeros((rows, 0), jnp.int32),
        block_limits=jnp.where(at < lengths[:, None], at + 1, 0),
        kernel=_kernel(causal, live),
        block_ahead=ahead,
    )


def no_pages() -> LayerPages:
    """Return the pages of a layer that caches nothing."""
    return LayerPages(jnp.zeros((0,), jnp.float32), None)


def attend_among(
    q: jax.Array,  # [B, T, H, Q]
    k: jax.Array,  # [B, T, H, Q]
    v: jax.Array,  # [B, T, H, Q]
    lengths: jax.Array,  # i32[B]
    live: jax.Array,
    *,
    causal: bool = False,
    scale: float | None = None,  # of scores; None: 1 / sqrt(Q)
) -> jax.Array:
    """Return f32[B, T, H, Q]: attention of inputs to themselves, by the native kernel.

    live: as of `whole_batch`.
    """
    batch = whole_batch(lengths, q.shape[1], causal=causal, live=live)
    flat = (each.reshape(-1, *each.shape[2:]) for each in (q, k, v))
    made, _ = batch.attend(no_pages(), *flat, scale=scale or q.shape[3] ** -0.5)
    return made.reshape(q.shape)


def attend_in_groups(
    q: jax.Array,  # [B, T, H, Q]
    k: jax.Array,  # [B, T, H, Q]
    v: jax.Array,  # [B, T, H, Q]
    groups: jax.Array,  # i32[B, T]: of each token, one group behind the other; -1: padding
) -> jax.Array:
    """Return f32[B, T, H, Q]: each token attends to its own group, by the native kernel."""
    at = jnp.broadcast_to(jnp.arange(groups.shape[1], dtype=jnp.int32), groups.shape)
    others = groups[:, 1:] != groups[:, :-1]
    begins = jnp.pad(others, ((0, 0), (1, 0)), constant_values=True)
    ends = jnp.pad(others, ((0, 0), (0, 1)), constant_values=True)
    first = jax.lax.cummax(jnp.where(begins, at, 0), axis=1)
    end = jax.lax.cummin(jnp.where(ends, at + 1, at.shape[1]), axis=1, reverse=True)
    limits = jnp.where(groups < 0, 0, end)
    return attend_whole(q, k, v, first, limits, Scores(q.shape[3] ** -0.5, None, None)).reshape(
        q.shape
    )


def _kernel(causal: bool, live: jax.Array | None) -> WholeInputs:
    return WholeInputs(causal, native=live is not None, skips=live is not None and live.size > 0)


def _in_parts(
    q: jax.Array,  # f32[B, T, H, Q]
    k: jax.Array,  # f32[B, T, K, Q]
    v: jax.Array,  # f32[B, T, K, W]
    places: tuple[jax.Array, jax.Array | None],  # limits i32[B, T], 0 for padding; `block_ahead`
    scores: Scores,
    causal: bool,
) -> jax.Array:
    """f32[B, T, H, W]: a few queries after the other, each part computed again for gradients."""
    length = q.shape[1]
    size = math.gcd(length, _QUERIES) if length > _QUERIES else length
    (limits, ahead), there = places, places[0] > 0

    @jax.checkpoint
    def part(first: jax.Array) -> jax.Array:
        queries = jax.lax.dynamic_slice_in_dim(q, first, size, axis=1)
        seen = _seen(first + jnp.arange(size), jnp.arange(length), scores, causal)[None]
        if ahead is not None:
            reach = jax.lax.dynamic_slice_in_dim(limits + ahead, first, size, axis=1)
            own = jax.lax.dynamic_slice_in_dim(limits, first, size, axis=1)
            at = jnp.arange(length)[None, None]
            seen = seen | ((at >= own[:, :, None]) & (at < reach[:, :, None]))
        return _attended(queries, k, v, seen & there[:, None], scores)

    if size == length:
        return part(jnp.int32(0))
    parts = jax.lax.map(part, jnp.arange(0, length, size))  # f32[N, B, C, H, W]
    return parts.swapaxes(0, 1).reshape(*q.shape[:3], v.shape[3])


def _seen(queries: jax.Array, keys: jax.Array, scores: Scores, causal: bool) -> jax.Array:
    """bool[C, T]: which keys each query sees, by their places in the input."""
    back, window = queries[:, None] - keys[None], scores.window
    if scores.chunk is not None:
        near = queries[:, None] // scores.chunk == keys[None] // scores.chunk
        return near & (back >= 0) if causal else near
    if causal:
        return (back >= 0) if window is None else (back >= 0) & (back < window)
    # Bidirectional models see half of their window on either side.
    return jnp.ones_like(back, bool) if window is None else jnp.abs(back) <= window // 2


def _attended(
    q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array, scores: Scores
) -> jax.Array:
    """f32[B, C, H, W]; a query that sees nothing gives zeros."""
    rows, columns, heads, size = q.shape
    kv_heads = k.shape[2]
    queries = q.reshape(rows, columns, kv_heads, heads // kv_heads, size)
    made = jnp.einsum("bckrq,bskq->bkrcs", queries, k) * scores.scale
    if scores.softcap is not None:
        made = scores.softcap * jnp.tanh(made / scores.softcap)
    mask = seen[:, None, None]
    made = jnp.where(mask, made, -1e30)
    if scores.sinks is not None:
        of_heads = scores.sinks.reshape(1, kv_heads, -1, 1, 1)
        made = jnp.concatenate([made, jnp.broadcast_to(of_heads, (*made.shape[:-1], 1))], axis=-1)
    weights = jax.nn.softmax(made, axis=-1)[..., : mask.shape[-1]] * mask.astype(jnp.float32)
    mixed = jnp.einsum("bkrcs,bskw->bckrw", weights, v)
    return mixed.reshape(rows, columns, heads, v.shape[3])
