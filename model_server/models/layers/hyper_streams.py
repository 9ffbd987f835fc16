"""Hyper-connections: several residual streams, from which each half of a layer reads a mixture.

Source: Zhu et al. 2024, "Hyper-Connections" (arXiv:2409.19606), as Hy4 has them: what a half makes
is added to each stream with a weight of its own, and streams do not mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.row_sums import logistic, unit
from model_server.models.layers.layers import (
    LiveRows,
    Names,
    live_of,
    project_finely,
    sum_in_order,
)
from model_server.models.weights.weight import weight


class StreamWeights(nnx.Module):
    """Makes `parts` weights for each of N streams, from all of them; in float32, as routers."""

    def __init__(
        self,
        embed: int,
        streams: int,
        parts: int,
        sources: Sequence[Names],  # of the matrix, the offsets and the factors
        *,
        epsilon: float,
        least: float,
    ) -> None:
        matrix, offsets, factors = sources
        outputs, f32 = parts * streams, jnp.float32
        self.streams, self.parts, self.epsilon, self.least = streams, parts, epsilon, least
        self.kernel = weight(
            (outputs, streams * embed), (None, None), matrix, dtype=f32, spread=0.02
        )
        self.offsets = weight((outputs,), (None,), offsets, dtype=f32, spread=0.0)
        self.factors = weight((parts,), (None,), factors, dtype=f32)
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps the streams f32[T, N D] to f32[T, parts, N], of 0 to 1."""
        made = project_finely(unit(x, self.epsilon), self.kernel[...], live_of(self))
        factors = jnp.repeat(self.factors[...], self.streams)
        found = logistic(made * factors[None] + self.offsets[...][None])
        return found.reshape(-1, self.parts, self.streams)

    def mixed(self, x: jax.Array, weights: jax.Array) -> jax.Array:
        """Return f32[T, D], the streams f32[T, N D] weighted by f32[T, N] and added up."""
        shares = (weights + self.least)[..., None]
        return sum_in_order(x.reshape(len(x), self.streams, -1) * shares, axis=1)


class HyperConnection(StreamWeights):
    """What a half of a layer reads of the streams, and how its output is added to them."""

    def __init__(self, *args: Any, magnitude: float, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.magnitude = magnitude  # of what is added

    def read(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return f32[T, D], and the weights f32[T, N] of what is added."""
        made = self(x)
        return self.mixed(x, made[:, 0]), self.magnitude * made[:, 1] + self.least

    @staticmethod
    def added(x: jax.Array, made: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the streams f32[T, N D] with f32[T, D] added."""
        return x + (weights[..., None] * made[:, None]).reshape(x.shape)


class StreamsNorm(nnx.Module):
    """The last norm, of a mixture of the streams."""

    def __init__(self, head: StreamWeights, norm: nnx.Module) -> None:
        self.head = head
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, N D] to f32[T, D]."""
        return self.norm(self.head.mixed(x, self.head(x)[:, 0]))
