"""Several residual streams, from which each half of a layer reads a gated mean.

Sources: Zhu et al. 2024, "Hyper-Connections" (arXiv:2409.19606); transformers' `models/qwen4_exp`.
The gates of every number come from all streams through a low rank. What a half makes is added to
each stream with a weight of its own, and streams do not mix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.row_sums import logistic, mixed_streams, silu
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import EVERY_ROW, Linear, LiveRows, unit_rows
from model_server.models.weights.weight import WeightForm, weight


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsShape:
    streams: int  # N
    embed: int  # D
    rank: int  # of what makes the gates
    epsilon: float

    @property
    def width(self) -> int:
        """Numbers of all streams."""
        return self.streams * self.embed


class StreamNorms(nnx.Module):
    """An RMS norm of each of N streams, whose scales are stored minus one."""

    def __init__(self, streams: int, embed: int, name: str, *, epsilon: float) -> None:
        self.streams, self.epsilon = streams, epsilon
        source = (f"{name}.weight",)
        self.scale = weight((streams * embed,), (None,), source, dtype=jnp.float32, spread=0.0)
        self.live: LiveRows = nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, N D] to f32[T, N, D]."""
        scale = self.scale[...].reshape(1, self.streams, -1) + 1.0
        live = None if self.live is None else EVERY_ROW
        normed = unit_rows(x.reshape(-1, scale.shape[2]), self.epsilon, live)
        return normed.reshape(-1, *scale.shape[1:]) * scale


@dataclass(frozen=True, slots=True)
class ShrunkSilu:
    """silu(x / by)"""

    by: int

    def __call__(self, x: jax.Array) -> jax.Array:
        return silu(x / self.by)


class StreamMixer(nnx.Module):
    """Mixes the streams; one that `writes` also weighs what is added to each."""

    def __init__(
        self, shape: StreamsShape, name: str, form: WeightForm, *, writes: bool = True
    ) -> None:
        streams, embed = shape.streams, shape.embed
        self.streams = streams
        self.norms = StreamNorms(streams, embed, f"{name}.hc_norm", epsilon=shape.epsilon)
        self.gates = FeedForward(
            streams * embed,
            shape.rank,
            up=(f"{name}.input_mix_weight_down.weight",),
            down=(f"{name}.input_mix_weight_up.weight",),
            activation=ShrunkSilu(streams),
            form=form,
        )
        if writes:
            # A row for each stream is too few for the native products and not worth quantising.
            plain = replace(form, quantization=None, tiles=False, adapters=None)
            source = (f"{name}.block_inject_weight.weight",)
            self.shares = Linear(streams, streams * embed, (None, "embed"), source, form=plain)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps the streams f32[T, N D] to f32[T, D]."""
        normed = self.norms(x)
        return self._mixed(normed, normed.reshape(x.shape))

    def read(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return f32[T, D], and the weights f32[T, N] of what is added, of 0 to 2."""
        normed = self.norms(x)
        flat = normed.reshape(x.shape)
        return self._mixed(normed, flat), 2 * logistic(self.shares(flat) / self.streams)

    def _mixed(self, normed: jax.Array, flat: jax.Array) -> jax.Array:
        gates = logistic(self.gates(flat)).reshape(normed.shape)
        alike = jnp.ones((len(flat), self.streams, 1), jnp.float32)
        return mixed_streams(gates * normed, alike)[:, 0] / self.streams


def added(x: jax.Array, made: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the streams f32[T, N D] with f32[T, D] added by weights f32[T, N]."""
    streams = x.reshape(len(x), weights.shape[1], -1)
    return mixed_streams(streams, None, weights, made).reshape(x.shape)


class StreamsFfw(nnx.Module):
    """The second half of a layer."""

    def __init__(self, mixer: StreamMixer, ffw: nnx.Module) -> None:
        self.mixer, self.ffw = mixer, ffw

    def __call__(self, x: jax.Array) -> jax.Array:
        seen, weights = self.mixer.read(x)
        return added(x, self.ffw(seen), weights)


class LastMixture(nnx.Module):
    """Mixes the streams of a row for the head."""

    def __init__(self, mixer: StreamMixer, stream: int) -> None:
        self.mixer, self.stream = mixer, stream

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps rows f32[T, N D] or f32[T, N D + 1] to f32[T, D]."""
        return self.mixer(x[:, : self.stream])
