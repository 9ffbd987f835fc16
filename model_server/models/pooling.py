"""Pooling a text's hidden states into one vector."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Pool = Callable[[jax.Array, jax.Array], jax.Array]  # f32[B, T, D], bool[B, T] -> f32[B, D]


def _cls(hidden: jax.Array, there: jax.Array) -> jax.Array:
    return hidden[:, 0]


def _mean(hidden: jax.Array, there: jax.Array) -> jax.Array:
    total = jnp.where(there[..., None], hidden, 0.0).sum(1)
    return total / there.sum(1, keepdims=True)


def _max(hidden: jax.Array, there: jax.Array) -> jax.Array:
    return jnp.where(there[..., None], hidden, -jnp.inf).max(1)


POOLINGS: dict[str, Pool] = {"cls": _cls, "mean": _mean, "max": _max}


def pooled(
    hidden: jax.Array,  # f32[B, T, D]
    lengths: jax.Array,  # i32[B]
    *,
    pooling: str,
    normalise: bool,
) -> jax.Array:
    """f32[B, D]: one vector per text, of unit length if `normalise`."""
    there = jnp.arange(hidden.shape[1]) < lengths[:, None]
    vectors = POOLINGS[pooling](hidden, there)
    if not normalise:
        return vectors
    size = jnp.sqrt(jnp.square(vectors).sum(-1, keepdims=True))
    return vectors / jnp.maximum(size, 1e-12)
