"""Angles as 32-bit fractions of a turn: right where they wrap, and cheap to take a sine of.

A float32 angle of position 100,000 is off by 0.004 radians before its sine is taken, and a sine
that takes any number is 15,000 instructions in every step of a TPU. An unsigned integer that
counts 2^-32 turns wraps where an angle does, so that its product with a position is off by the
rounding of the frequency alone: at most 2^-33 turns a position, 0.0001 radians at 100,000.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_TURN = 2**32
_QUARTER, _HALF = np.uint32(2**30), np.uint32(2**31)
# sin(2 pi x) / x in powers of x^2, by Chebyshev's interpolation for |x| <= 1/4: 7e-9 from it.
_SINE = (6.28318528, -41.34168061, 81.60247637, -76.58117264, 39.75982707)


def turns_of(positions: jax.Array, frequencies: np.ndarray) -> jax.Array:
    """The angles of positions, in 2^-32 turns; frequencies in radians per position.

    positions: i32[...]. Returns u32[..., len(frequencies)].
    """
    each = np.asarray(frequencies, np.float64) * (_TURN / (2 * math.pi))
    steps = np.mod(np.round(each), _TURN).astype(np.uint64).astype(np.uint32)
    return lax.bitcast_convert_type(positions, jnp.uint32)[..., None] * steps


def sine(turns: jax.Array) -> jax.Array:
    """f32: the sine of u32 turns, within 3e-7."""
    is_far = lax.bitcast_convert_type(turns ^ (turns << 1), jnp.int32) < 0  # over a quarter from 0
    near = lax.bitcast_convert_type(jnp.where(is_far, _HALF - turns, turns), jnp.int32)
    x = near.astype(jnp.float32) * (1 / _TURN)
    square, ratio = x * x, jnp.float32(_SINE[-1])
    for coefficient in _SINE[-2::-1]:
        ratio = ratio * square + coefficient
    return x * ratio


def cosine(turns: jax.Array) -> jax.Array:
    """f32: the cosine of u32 turns, within 3e-7."""
    return sine(turns + _QUARTER)
