"""Attention among the pieces of images: each piece sees all others of its image.

Keys and values of an image are few and its scores many: a few queries are computed after the other,
so that the scores take little memory however large an image is.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

QUERIES = 256  # of one product


def attend(
    q: jax.Array,  # [S, P, H, Q]
    k: jax.Array,  # [S, P, H, Q]
    v: jax.Array,  # [S, P, H, Q]
    lengths: jax.Array,  # i32[S]: pieces of each image; what is behind them is not seen
    scale: float | None = None,  # of scores; None: 1 / sqrt(Q)
) -> jax.Array:
    """Return f32[S, P, H, Q]; products in the dtype of the inputs, accumulated in float32."""
    images, pieces, heads, size = q.shape
    scale = size**-0.5 if scale is None else scale
    there = jnp.arange(pieces)[None] < lengths[:, None]
    if pieces <= QUERIES:
        return _mixed(q, k, v, there, scale)
    parts = -(-pieces // QUERIES)
    padded = jnp.pad(q, ((0, 0), (0, parts * QUERIES - pieces), (0, 0), (0, 0)))
    queries = padded.reshape(images, parts, QUERIES, heads, size).swapaxes(0, 1)
    made = _part_by_part(lambda some: _mixed(some, k, v, there, scale), queries)
    return made.swapaxes(0, 1).reshape(images, -1, heads, size)[:, :pieces]


def _part_by_part(mix: Callable[[jax.Array], jax.Array], queries: jax.Array) -> jax.Array:
    """Return f32[N, ...], `mix` of each of N parts, which are written over the queries.

    `jax.lax.map` would write into zeros that depend on nothing, and XLA prepares those of all
    layers on CPUs before the first one: with 34 layers, 2.5 GB for one of Llama 4's largest images.
    """

    def one(index: jax.Array, held: jax.Array) -> jax.Array:
        part = jax.lax.dynamic_index_in_dim(held, index, keepdims=False)
        made = mix(part.astype(queries.dtype))
        return jax.lax.dynamic_update_index_in_dim(held, made, index, 0)

    return jax.lax.fori_loop(0, len(queries), one, queries.astype(jnp.float32))


def _mixed(q: jax.Array, k: jax.Array, v: jax.Array, there: jax.Array, scale: float) -> jax.Array:
    """f32[S, C, H, Q] of queries [S, C, H, Q]; there: bool[S, P]."""
    scores = jnp.einsum("schq,sphq->shcp", q, k, preferred_element_type=jnp.float32)
    scores = jnp.where(there[:, None, None], scores * scale, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.einsum("shcp,sphq->schq", weights, v, preferred_element_type=jnp.float32)
