"""Absolute positions added to token embeddings: learned or sinusoidal."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.models.decoder import Decoder
from model_server.models.layers import Names
from model_server.models.stage import Stage
from model_server.models.turns import cosine, sine, turns_of
from model_server.models.weight import WeightForm, weight


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
        turns = turns_of(positions, 10000.0 ** (-np.arange(half) / max(half - 1, 1)))
        return jnp.concatenate([sine(turns), cosine(turns)], axis=-1)


class PositionedDecoder(Decoder):
    """A decoder whose first layer sees token plus position embeddings."""

    def __init__(self, *, positions: LearnedPositions | Sinusoids, **parts: Any) -> None:
        super().__init__(**parts)
        self.positions = positions

    def embed(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        return super().embed(tokens, positions) + self.positions(positions)

    def keep(self, stage: Stage) -> None:
        """Drop the positions too, except on the first stage."""
        super().keep(stage)
        if not stage.is_first:
            del self.positions
