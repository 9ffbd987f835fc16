"""Sums over the last dimension whose bits on CPUs depend less on the number of rows than XLA's own.

XLA:CPU adds the numbers of a row in an order that depends on how many rows there are, so a token's
norm would depend on its batch. A product with ones did not in rows of 16 numbers and more; in very
short rows it may. On other platforms these are XLA's own sums.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax


def row_sum(x: jax.Array) -> jax.Array:
    """Return f32[..., 1], the sum of each row of f32[..., D]; D is at least 1."""
    return lax.platform_dependent(x, cpu=_by_product, default=_plain)


def row_mean(x: jax.Array) -> jax.Array:
    """Return f32[..., 1], the mean of each row of f32[..., D]."""
    return row_sum(x) / x.shape[-1]


def row_softmax(x: jax.Array) -> jax.Array:
    """Return f32[..., D], the softmax of each row; -inf gets nothing."""
    # What is summed and what is divided are one array: XLA would compute the exponential twice, in
    # loops of its own, with other bits. Its bits still depend on the shape in some sizes.
    weights = lax.optimization_barrier(jnp.exp(x - x.max(-1, keepdims=True)))
    return weights / row_sum(weights)


def _plain(x: jax.Array) -> jax.Array:
    return x.sum(-1, keepdims=True)


def _by_product(x: jax.Array) -> jax.Array:
    ones = jnp.ones((x.shape[-1], 2), x.dtype)
    return jnp.matmul(x, ones, precision="highest")[..., :1]
