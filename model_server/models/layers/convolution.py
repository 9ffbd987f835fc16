"""Short causal convolutions, one filter per channel; a sequence's last inputs are their state."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import StateArray
from model_server.kernels.states import Filtering, State
from model_server.models.layers.layers import Branches, Linear, Names
from model_server.models.layers.rope import Rotary
from model_server.models.weights.divided_product import mesh_of
from model_server.models.weights.sharding import split_heads
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight


class Convolution(nnx.Module):
    """Each channel's weighted sum of its last K inputs."""

    def __init__(
        self,
        channels: int,
        width: int,  # K
        source: Names,  # [D, 1, K]
        *,
        axis: str | None = None,
        bias: Names | None = None,
    ) -> None:
        shape, f32, self.axis = (channels, 1, width), jnp.float32, axis
        self.kernel = weight(shape, (axis, None, None), source, dtype=f32, spread=0.02)
        if bias is not None:
            self.bias = weight((channels,), (axis,), bias, dtype=f32, spread=0.0)
        self.biased = bias is not None

    def __call__(
        self,
        before: jax.Array,  # f32[D, K - 1]
        x: jax.Array,  # f32[C, D]
        count: jax.Array,  # i32[]: inputs that are no padding
    ) -> tuple[jax.Array, jax.Array]:
        """Return the K - 1 inputs before the next one, and f32[C, D]."""
        inputs, kernel = jnp.concatenate([before, x.T], axis=1), self.taps
        width, columns = kernel.shape[1], x.shape[0]
        seen = jnp.stack([inputs[:, at : at + columns] for at in range(width)], axis=-1)
        made = jnp.sum(seen * kernel[:, None], axis=-1)
        if self.biased:
            made = made + self.bias[...][:, None]
        return lax.dynamic_slice_in_dim(inputs, count, width - 1, axis=1), self._kept(made.T)

    @property
    def taps(self) -> jax.Array:
        """f32[D, K]"""
        return self.kernel[...][:, 0]

    @property
    def offset(self) -> jax.Array | None:
        """f32[D]"""
        return self.bias[...] if self.biased else None

    def _kept(self, x: jax.Array) -> jax.Array:
        """Keep f32[C, D] whole where every device has all channels.

        What follows may need a part of them on each: XLA would divide the states likewise, and put
        them together again in every step.
        """
        mesh = mesh_of(self.kernel[...])
        if self.axis is not None or mesh.empty:
            return x
        return lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvShape:
    embed: int
    width: int  # K: inputs that one output sees

    def states(self, shards: int) -> tuple[StateArray, ...]:
        return (
            StateArray(
                (self.embed, self.width - 1), split_heads(self.embed, self.embed, shards).axis
            ),
        )


class ShortConvolution(nnx.Module):
    """A gated convolution in place of attention (LFM2, https://www.liquid.ai/blog)."""

    def __init__(
        self, shape: ShortConvShape, prefix: str, form: WeightForm, *, biased: bool = False
    ) -> None:
        embed, self.shape = shape.embed, shape
        axis = split_heads(embed, embed, form.layout.shards("heads")).axis
        joined, offsets = Tensor(f"{prefix}.in_proj.weight"), Tensor(f"{prefix}.in_proj.bias")
        thirds = [(part * embed, (part + 1) * embed) for part in range(3)]
        self.inputs = Branches(
            [embed] * 3,
            embed,
            [(axis, "embed")] * 3,
            [cut(joined, *third, of=3 * embed) for third in thirds],
            form=form,
            biases=[cut(offsets, *third, of=3 * embed) for third in thirds] if biased else None,
        )
        self.conv = Convolution(
            embed,
            shape.width,
            (f"{prefix}.conv.weight",),
            axis=axis,
            bias=(f"{prefix}.conv.bias",) if biased else None,
        )
        self.out = Linear(
            embed,
            embed,
            ("embed", axis),
            (f"{prefix}.out_proj.weight",),
            form=form,
            bias=(f"{prefix}.out_proj.bias",) if biased else None,
        )

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Returns f32[T, D] and the states with those of the new tokens."""
        into, out_of, inner = self.inputs(x)
        blank = (jnp.zeros((self.shape.embed, self.shape.width - 1), jnp.float32),)
        mixed, pages = batch.advance(pages, blank, into * inner, Filtering(self.conv))
        return self.out(out_of * mixed), pages
