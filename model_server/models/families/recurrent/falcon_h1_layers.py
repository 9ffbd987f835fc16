"""Falcon-H1's layer in two halves: one attends and caches, the next keeps a state.

Both see the same normed input. So that each has one kind of pages, as every layer has, the first
half hands what it found to the second, beside the stream.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.states import State
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.rope import Rotary
from model_server.models.layers.state_space import StateSpace


class AttendingHalf(nnx.Module):
    """Maps a stream f32[T, D], with anything behind it, to the stream and what attention found."""

    def __init__(
        self, norm: nnx.Module, attention: nnx.Module, *, factor: float, out_factor: float
    ) -> None:
        self.norm = norm
        self.attention = attention
        self.factor = factor  # of the input
        self.out_factor = out_factor

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: LayerPages, batch: PagedBatch
    ) -> tuple[jax.Array, LayerPages]:
        """Maps f32[T, 2 D] to f32[T, 2 D]."""
        stream = x[:, : x.shape[1] // 2]
        mixed, pages = self.attention(self.norm(stream) * self.factor, rotation, pages, batch)
        return jnp.concatenate([stream, mixed * self.out_factor], axis=-1), pages


class RecurrentHalf(nnx.Module):
    """Adds what attention found, the output of a state space, and a feed-forward."""

    def __init__(
        self,
        norm: nnx.Module,
        mixer: StateSpace,
        before_ffw: nnx.Module,
        ffw: nnx.Module,
        *,
        factor: float,
        out_factor: float,
    ) -> None:
        self.norm = norm
        self.mixer = mixer
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.factor = factor  # of the mixer's input
        self.out_factor = out_factor

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Maps f32[T, 2 D] to f32[T, 2 D], of which the first half counts."""
        stream, attended = jnp.split(x, 2, axis=1)
        mixed, pages = self.mixer(self.norm(stream) * self.factor, rotation, pages, batch)
        stream = stream + mixed * self.out_factor + attended
        stream = stream + self.ffw(self.before_ffw(stream))
        return jnp.concatenate([stream, jnp.zeros_like(stream)], axis=-1), pages


class HalvedDecoder(Decoder):
    """A decoder of such halves."""

    def embed(self, tokens: jax.Array, positions: jax.Array, media: Any = None) -> jax.Array:
        """Returns f32[T, 2 D], the input of the first half; it takes no media."""
        assert media is None, "models of this kind see no images"
        x = super().embed(tokens, positions)
        return jnp.concatenate([x, jnp.zeros_like(x)], axis=-1)


class StreamNorm(nnx.Module):
    """The last norm, of the stream alone."""

    def __init__(self, norm: nnx.Module) -> None:
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, 2 D] to f32[T, D]."""
        return self.norm(x[:, : x.shape[1] // 2])


class ScaledFeedForward(GatedFeedForward):
    """A gated feed-forward with a factor of the gate and one of the output."""

    def __init__(
        self, embed: int, ffw: int, *, factor: float, out_factor: float, **rest: Any
    ) -> None:
        super().__init__(embed, ffw, **rest)
        self.factor, self.out_factor = factor, out_factor

    def __call__(self, x: jax.Array) -> jax.Array:
        opening, up = self.gate_up(x)
        return self.down(self.activation(opening * self.factor) * up) * self.out_factor
