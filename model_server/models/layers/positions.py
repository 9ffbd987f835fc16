"""Absolute positions added to token embeddings: learned or sinusoidal."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from model_server.kernels.media_vectors import MediaVectors
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.layers import Names
from model_server.models.weights.stage import Stage
from model_server.models.weights.weight import WeightForm, weight

_TURN = 2**32
_QUARTER, _HALF = np.uint32(2**30), np.uint32(2**31)
# sin(2 pi x) / x in powers of x^2, Chebyshev interpolation for |x| <= 1/4, within 7e-9.
_SINE = (6.28318528, -41.34168061, 81.60247637, -76.58117264, 39.75982707)


def rotary_angles(positions: jax.Array, frequencies: np.ndarray) -> jax.Array:
    """Angles of positions, in 2^-32 turns.

    positions: i32[...]; frequencies: radians per position. Returns u32[..., len(frequencies)].
    """
    each = np.asarray(frequencies, np.float64) * (_TURN / (2 * math.pi))
    steps = np.mod(np.round(each), _TURN).astype(np.uint64).astype(np.uint32)
    each_position = lax.bitcast_convert_type(positions, jnp.uint32)[..., None]
    return each_position * lax.broadcast_to_rank(steps, each_position.ndim)


def sine(turns: jax.Array) -> jax.Array:
    """f32 sine of u32 turns, within 3e-7."""
    is_far = lax.bitcast_convert_type(turns ^ (turns << 1), jnp.int32) < 0  # over a quarter from 0
    near = lax.bitcast_convert_type(jnp.where(is_far, _HALF - turns, turns), jnp.int32)
    x = near.astype(jnp.float32) * (1 / _TURN)
    square, ratio = x * x, jnp.float32(_SINE[-1])
    for coefficient in _SINE[-2::-1]:
        ratio = ratio * square + coefficient
    return x * ratio


def cosine(turns: jax.Array) -> jax.Array:
    """f32 cosine of u32 turns, within 3e-7."""
    return sine(turns + _QUARTER)


class LearnedPositions(nnx.Module):
    """One learned vector per position; its row count bounds the model's context."""

    def __init__(self, count: int, size: int, source: Names = (), *, form: WeightForm) -> None:
        self.table = weight((count, size), (None, "embed"), source, dtype=form.dtype, spread=0.02)

    def __call__(self, positions: jax.Array) -> jax.Array:
        """Maps i32[T] to f32[T, D]."""
        # One token past a full context may be computed before the sequence is seen to have ended;
        # it is discarded.
        return self.table[...].at[positions].get(mode="clip").astype(jnp.float32)


class Sinusoids(nnx.Module):
    """Sines, then cosines (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762)."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, positions: jax.Array) -> jax.Array:
        """Maps i32[T] to f32[T, D]."""
        half = self.size // 2
        turns = rotary_angles(positions, 10000.0 ** (-np.arange(half) / max(half - 1, 1)))
        return jnp.concatenate([sine(turns), cosine(turns)], axis=-1)


class PositionedDecoder(Decoder):
    """A decoder whose first layer sees token plus position embeddings."""

    def __init__(self, *, positions: LearnedPositions | Sinusoids, **parts: Any) -> None:
        super().__init__(**parts)
        self.positions = positions

    def embed(
        self, tokens: jax.Array, positions: jax.Array, media: MediaVectors | None = None
    ) -> jax.Array:
        return super().embed(tokens, positions, media) + self.positions(positions)

    def keep(self, stage: Stage) -> None:
        super().keep(stage)
        if not stage.is_first:
            del self.positions
