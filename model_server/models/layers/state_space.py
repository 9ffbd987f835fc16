"""Mamba-2's selective state spaces: a decaying sum of outer products per head.

Source: Dao and Gu 2024 (arXiv:2405.21060). A head's memory h, [P, N], becomes

    h = exp(dt A) h + dt x B;    output  h C + D x

with steps dt, inputs x, and B and C from the token; several tokens are computed at once as sums
over those before, each faded by the product of the decays since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import StateArray
from model_server.kernels.row_sums import fading, rounded, silu, softplus, unit
from model_server.kernels.states import MemoryTokens, Remembering, State
from model_server.models.layers.convolution import Convolution
from model_server.models.layers.layers import Linear
from model_server.models.layers.rope import Rotary
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm, weight

_EXACT = lax.Precision.HIGHEST  # errors of a memory would stay


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceShape:
    embed: int
    heads: int
    head_dim: int  # P
    groups: int  # heads / groups of them share B and C
    state: int  # N
    width: int  # of the convolution
    epsilon: float
    norm_groups: int = 1  # parts of the output that are normed each for itself
    biased: bool = False  # input projection
    out_biased: bool | None = None  # None: as the input projection
    normed: bool = True  # the output
    norms_first: bool = False  # before it is gated, not behind
    factors: tuple[float, ...] = (1.0,) * 5  # of what gate, x, B, C and steps are made of
    conv_biased: bool = True
    least_step: float = 0.0
    most_step: float = float("inf")

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def parts(self) -> tuple[int, int, int]:
        """Channels of x, B and C."""
        return self.inner, self.groups * self.state, self.groups * self.state

    def axes(self, shards: int) -> tuple[str | None, str | None, str | None]:
        """Logical axes of x, B and C; None: each device computes all."""
        heads, groups = (
            None if shards == 1 or count % shards else "heads"
            for count in (self.heads, self.groups)
        )
        return heads, groups, groups

    def states(self, shards: int) -> tuple[StateArray, ...]:
        axes = self.axes(shards)
        convolved = [
            StateArray((channels, self.width - 1), axis)
            for channels, axis in zip(self.parts, axes, strict=True)
        ]
        return (*convolved, StateArray((self.heads, self.head_dim, self.state), axes[0]))


class ScanInputs(NamedTuple):
    """Inputs of the recurrence, [C, ...] each; in the layer [T, ...]."""

    x: jax.Array  # f32[C, channels]
    b: jax.Array
    c: jax.Array
    step: jax.Array  # f32[C, H]


class StateSpace(nnx.Module):
    """Convolves x, B and C, runs the recurrence, gates and norms its outputs."""

    def __init__(self, shape: StateSpaceShape, prefix: str, form: WeightForm) -> None:
        self.shape = shape
        axes = shape.axes(form.layout.shards("heads"))
        axis, sizes = axes[0], (shape.inner, *shape.parts, shape.heads)
        of_rows = (axis, *axes, axis)
        projected, total = Tensor(f"{prefix}.in_proj.weight"), sum(sizes)
        starts = [sum(sizes[:at]) for at in range(len(sizes))]
        bias = Tensor(f"{prefix}.in_proj.bias") if shape.biased else None

        def linear(at: int) -> Linear:
            start, end = starts[at], starts[at] + sizes[at]
            return Linear(
                sizes[at],
                shape.embed,
                (of_rows[at], "embed"),
                cut(projected, start, end, of=total),
                form=form,
                bias=None if bias is None else cut(bias, start, end, of=total),
            )

        self.gate, self.x, self.b, self.c, self.step = map(linear, range(len(sizes)))
        self.convolutions = nnx.List(self._convolutions(f"{prefix}.conv1d", axes))

        def vector(name: str, size: int) -> nnx.Param:
            return weight((size,), (axis,), (f"{prefix}.{name}",), dtype=jnp.float32)

        self.log_decay = vector("A_log", shape.heads)
        self.step_bias = vector("dt_bias", shape.heads)
        self.through = vector("D", shape.heads)
        if shape.normed:
            self.scale = vector("norm.weight", shape.inner)
        out_biased = shape.biased if shape.out_biased is None else shape.out_biased
        self.out = Linear(
            shape.embed,
            shape.inner,
            ("embed", axis),
            (f"{prefix}.out_proj.weight",),
            form=form,
            bias=(f"{prefix}.out_proj.bias",) if out_biased else None,
        )

    def _convolutions(self, name: str, axes: Sequence[str | None]) -> list[Convolution]:
        sizes, total = self.shape.parts, sum(self.shape.parts)
        kernel, bias = Tensor(f"{name}.weight"), Tensor(f"{name}.bias")
        starts = [sum(sizes[:at]) for at in range(3)]
        return [
            Convolution(
                size,
                self.shape.width,
                cut(kernel, start, start + size, of=total),
                axis=axis,
                bias=cut(bias, start, start + size, of=total) if self.shape.conv_biased else None,
            )
            for start, size, axis in zip(starts, sizes, axes, strict=True)
        ]

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Returns f32[T, D] and the states with those of the new tokens."""
        s = self.shape
        projections = self.gate, self.x, self.b, self.c, self.step
        gate, inner, b, c, step = (
            made(x) if factor == 1.0 else rounded(made(x) * factor)
            for made, factor in zip(projections, s.factors, strict=True)
        )
        step = softplus(step + self.step_bias[...][None])
        tokens = ScanInputs(inner, b, c, jnp.clip(step, s.least_step, s.most_step))
        blank = tuple(jnp.zeros(each.shape, jnp.float32) for each in s.states(1))
        step = Remembering(self.convolutions, self._tokens, remembered, self._finished)
        mixed, pages = batch.advance(pages, blank, tokens, step)
        return self.out(self._gated(mixed.reshape(x.shape[0], -1), silu(gate))), pages

    def _gated(self, x: jax.Array, gate: jax.Array) -> jax.Array:
        if not self.shape.normed:
            return x * gate
        return self._normed(x) * gate if self.shape.norms_first else self._normed(x * gate)

    def _normed(self, x: jax.Array) -> jax.Array:
        parts = x.reshape(x.shape[0], self.shape.norm_groups, -1)
        return unit(parts, self.shape.epsilon).reshape(x.shape) * self.scale[...][None]

    def _tokens(
        self, convolved: Sequence[jax.Array], given: ScanInputs
    ) -> tuple[MemoryTokens, jax.Array]:
        """Return what the memory takes, and x."""
        s = self.shape
        x, b, c = (silu(part) for part in convolved)
        x = x.reshape(-1, s.heads, s.head_dim)
        b, c = (
            jnp.repeat(part.reshape(-1, s.groups, s.state), s.heads // s.groups, axis=1)
            for part in (b, c)
        )
        decay = fading(self.log_decay[...])[None] * given.step
        return MemoryTokens(x * given.step[..., None], b, c, decay), x

    def _finished(self, made: jax.Array, x: jax.Array) -> jax.Array:
        """Add the inputs f32[C, H, P] to the outputs f32[C, H, P]."""
        return made + rounded(self.through[...][None, :, None] * x)


def remembered(memory: jax.Array, tokens: MemoryTokens) -> tuple[jax.Array, jax.Array]:
    """As `scan`."""
    return scan(memory, tokens.column, tokens.row, tokens.read, tokens.decay)


def scan(
    memory: jax.Array,  # f32[H, P, N]
    x: jax.Array,  # f32[C, H, P]: times its step
    b: jax.Array,  # f32[C, H, N]
    c: jax.Array,  # f32[C, H, N]
    decay: jax.Array,  # f32[C, H]: logarithms, at most 0
) -> tuple[jax.Array, jax.Array]:
    """Return the memory after C tokens, and their outputs f32[C, H, P]."""
    so_far, at = jnp.cumsum(decay, axis=0), jnp.arange(x.shape[0])
    since = jnp.exp(jnp.minimum(so_far[:, None] - so_far[None], 0.0))  # [i, j, H]: j before i
    seen = jnp.einsum("ihn,jhn->ijh", c, b, precision=_EXACT) * since
    seen = jnp.where((at[:, None] >= at[None])[..., None], seen, 0.0)
    made = jnp.einsum("chn,hpn->chp", c, memory, precision=_EXACT) * jnp.exp(so_far)[..., None]
    made = made + jnp.einsum("ijh,jhp->ihp", seen, x, precision=_EXACT)
    left = jnp.exp(so_far[-1:] - so_far)[..., None]
    added = jnp.einsum("chp,chn->hpn", x * left, b, precision=_EXACT)
    return memory * jnp.exp(so_far[-1])[:, None, None] + added, made
