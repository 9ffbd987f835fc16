"""Draws of tokens by weight: a race (Gumbel-max), on the device, row by row.

Each token gets a random time, exponential at a rate of its weight, and the first one wins. The
random numbers are keyed by (seed, position, token), so they are the same in any batch, and the
logits' rounding, which differs between batches, changes the winner only if two tokens arrive almost
together. Inverting the cumulative distribution, in contrast, lets rounding in any token shift the
borders of all that follow.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_BELOW_ONE = 1 - 2.0**-24  # the largest f32 below 1


def race(weights: jax.Array, tokens: jax.Array, seed: jax.Array, position: jax.Array) -> jax.Array:
    """Draw a token, i32[R], per row of f32[R, C] with probability proportional to its weight.

    tokens: u32[R, C]. seed: u32[R, 2]. position: i32[R].
    """
    uniform = jnp.minimum((_bits(seed, position, tokens) + 0.5) * 2.0**-32, _BELOW_ONE)
    winner = first_highest(weights / -jnp.log1p(-uniform))
    return jnp.take_along_axis(tokens, winner[:, None], axis=1)[:, 0].astype(jnp.int32)


def first_highest(values: jax.Array) -> jax.Array:
    """Return the first column of each row of f32[R, C] that has its highest value."""
    # Two plain reductions vectorise; argmax's paired reduction does not on a CPU.
    columns = lax.broadcasted_iota(jnp.int32, values.shape, 1)
    best = values == values.max(-1, keepdims=True)
    return jnp.where(best, columns, values.shape[1]).min(-1).clip(0, values.shape[1] - 1)


def _bits(seed: jax.Array, position: jax.Array, tokens: jax.Array) -> jax.Array:
    """Return random 32-bit numbers, rounded to f32[R, C]: a function of (seed, position, token).

    Threefry makes two words per row, and two rounds of a 32-bit finaliser mix them with each token.
    Threefry for every token took a quarter of a decode step on a CPU; this takes a thirtieth.
    """

    key = row_keys(seed, position)
    mixed = _mix(tokens * jnp.uint32(0x9E3779B9) ^ key[:, :1])
    return _mix(mixed + key[:, 1:]).astype(jnp.float32)


def row_keys(seed: jax.Array, position: jax.Array) -> jax.Array:
    """Return the two words, u32[R, 2], that key each row's random numbers."""

    def words(seed: jax.Array, at: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.key_data(jax.random.fold_in(key, at))

    return jax.vmap(words)(seed, position)


def _mix(word: jax.Array) -> jax.Array:
    """Mix the bits of u32 so that each input bit flips every output bit in half of all cases."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x85EBCA6B)
    word = (word ^ (word >> 13)) * jnp.uint32(0xC2B2AE35)
    return word ^ (word >> 16)
