"""Hyper-connections: several residual streams, from which each half of a layer reads a mixture.

Source: Zhu et al. 2024, "Hyper-Connections" (arXiv:2409.19606); for streams that mix, Xie et al.
2025, "mHC: Manifold-Constrained Hyper-Connections" (arXiv:2512.24880).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from model_server.kernels.row_sums import logistic, row_softmax, unit
from model_server.models.layers.layers import (
    LiveRows,
    Names,
    live_of,
    project_finely,
    sum_in_order,
)
from model_server.models.weights.weight import weight


class StreamWeights(nnx.Module):
    """Makes weights for N streams, from all of them; in float32, as routers."""

    def __init__(
        self,
        embed: int,
        streams: int,
        sizes: Sequence[int],  # of the parts, which have a factor each
        sources: Sequence[Names],  # of the matrix, the offsets and the factors
        *,
        epsilon: float,
        least: float,
    ) -> None:
        matrix, offsets, factors = sources
        outputs, f32 = sum(sizes), jnp.float32
        self.streams, self.sizes, self.epsilon, self.least = streams, tuple(sizes), epsilon, least
        self.kernel = weight(
            (outputs, streams * embed), (None, None), matrix, dtype=f32, spread=0.02
        )
        self.offsets = weight((outputs,), (None,), offsets, dtype=f32, spread=0.0)
        self.factors = weight((len(sizes),), (None,), factors, dtype=f32)
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> list[jax.Array]:
        """Maps the streams f32[T, N D] to a part f32[T, size] for each size."""
        made = project_finely(unit(x, self.epsilon), self.kernel[...], live_of(self))
        of_outputs = np.repeat(np.arange(len(self.sizes)), self.sizes)
        made = made * self.factors[...][of_outputs][None] + self.offsets[...][None]
        return jnp.split(made, np.cumsum(self.sizes)[:-1].tolist(), axis=1)

    def mixed(self, x: jax.Array, scores: jax.Array) -> jax.Array:
        """Return f32[T, D], the streams f32[T, N D] weighted by scores f32[T, N] and added up."""
        shares = (logistic(scores) + self.least)[..., None]
        return sum_in_order(x.reshape(len(x), self.streams, -1) * shares, axis=1)


class AddedStreams(StreamWeights):
    """Mixes the streams into the input of a half layer, and adds its output to each of them."""

    def __init__(self, embed: int, streams: int, *sources: Any, magnitude: float, **rest: Any):
        super().__init__(embed, streams, (streams, streams), *sources, **rest)
        self.magnitude = magnitude  # of what is added

    def read(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return f32[T, D], and the weights f32[T, N] of what is added."""
        reads, adds = self(x)
        return self.mixed(x, reads), self.magnitude * logistic(adds) + self.least

    def added(self, x: jax.Array, made: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the streams f32[T, N D] with f32[T, D] added."""
        return x + (weights[..., None] * made[:, None]).reshape(x.shape)


class MixedStreams(StreamWeights):
    """As `AddedStreams`, and mixes the streams by a matrix whose rows and columns add up to one.

    It is brought there by dividing rows and columns by their sums in turns (Sinkhorn and Knopp
    1967).
    """

    def __init__(self, embed: int, streams: int, *sources: Any, rounds: int, **rest: Any):
        super().__init__(embed, streams, (streams, streams, streams**2), *sources, **rest)
        self.rounds = rounds

    def read(self, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Return f32[T, D], and weights: of what is added, f32[T, N], and of streams, [T, N, N]."""
        reads, adds, mixes = self(x)
        return self.mixed(x, reads), (2 * logistic(adds), self._balanced(mixes))

    def added(
        self, x: jax.Array, made: jax.Array, weights: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Return the streams f32[T, N D], mixed, with f32[T, D] added."""
        adds, mixes = weights
        streams = x.reshape(len(x), self.streams, -1)
        parts = (mixes[:, i, :, None] * streams[:, i, None] for i in range(self.streams))
        mixed = functools.reduce(jnp.add, parts)
        return (adds[..., None] * made[:, None] + mixed).reshape(x.shape)

    def _balanced(self, scores: jax.Array) -> jax.Array:
        """Maps f32[T, N N] to f32[T, N, N]."""

        def divided(mixes: jax.Array, axis: int) -> jax.Array:
            sums = sum_in_order(mixes, axis=axis) + self.least
            return mixes / jnp.expand_dims(sums, axis)

        def both(_: int, mixes: jax.Array) -> jax.Array:
            return divided(divided(mixes, 2), 1)

        mixes = row_softmax(scores.reshape(len(scores), self.streams, -1)) + self.least
        return lax.fori_loop(0, self.rounds - 1, both, divided(mixes, 1))


class StreamsNorm(nnx.Module):
    """The last norm, of a mixture of the streams."""

    def __init__(self, head: StreamWeights, norm: nnx.Module) -> None:
        self.head = head
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, N D], and what may stand behind it, to f32[T, D]."""
        x = x[:, : self.head.kernel.shape[1]]
        return self.norm(self.head.mixed(x, self.head(x)[0]))
