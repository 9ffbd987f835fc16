"""Gated delta networks: a memory per head that decays, and takes in what it did not predict.

Source: Yang, Kautz and Hatamizadeh 2024 (arXiv:2412.06464). A head's memory S, [dk, dv], becomes

    S' = exp(g) S;    S = S' + k (b (v - k S'));    output  q S

Several tokens are computed at once by solving for all corrections b (v - k S') together: they
depend on each other through a triangular matrix of the keys' products. In Kimi's delta attention
(Kimi Team 2025, arXiv:2510.26692) each row of S has its own g.
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
from model_server.kernels.row_sums import fading, logistic, silu, softplus, unit
from model_server.kernels.states import MemoryTokens, Remembering, State
from model_server.models.layers.activations import Activation
from model_server.models.layers.convolution import Convolution
from model_server.models.layers.layers import Linear, Names, RmsNorm
from model_server.models.layers.rope import Rotary
from model_server.models.weights.weight import WeightForm, weight

_EXACT = lax.Precision.HIGHEST  # the memory is never read again: errors would stay


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    embed: int
    key_heads: int
    value_heads: int  # a multiple of the key heads, which serve as many each
    key_dim: int  # dk, of a head
    value_dim: int  # dv, of a head
    width: int  # of the convolution
    epsilon: float
    most_rate: float = 1.0  # that a head takes in; above 1 it may turn what it remembers around

    @property
    def parts(self) -> tuple[int, int, int]:
        """Channels of queries, keys and values."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.value_heads * self.value_dim

    def axes(self, shards: int) -> tuple[str | None, str | None, str | None]:
        """Logical axes of queries, keys and values; None: each device computes all."""
        keys, values = (
            None if shards == 1 or count % shards else "heads"
            for count in (self.key_heads, self.value_heads)
        )
        return keys, keys, values

    def states(self, shards: int) -> tuple[StateArray, ...]:
        axes = self.axes(shards)
        convolved = [
            StateArray((channels, self.width - 1), axis)
            for channels, axis in zip(self.parts, axes, strict=True)
        ]
        return (*convolved, StateArray((self.value_heads, self.key_dim, self.value_dim), axes[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSources:
    """Checkpoint sources of one layer."""

    q: Names
    k: Names
    v: Names
    gate: Names  # z
    rate: Names  # b
    decay: Names  # a
    convolutions: tuple[Names, Names, Names]  # of q, k and v
    log_decay: Names
    decay_bias: Names
    norm: Names
    out: Names


class DeltaInputs(NamedTuple):
    """Inputs of the recurrence, [C, ...] each; in the layer [T, ...]."""

    q: jax.Array  # f32[C, channels]
    k: jax.Array
    v: jax.Array
    rate: jax.Array  # f32[C, Hv]: between 0 and `most_rate`
    decay: jax.Array  # f32[C, Hv]: logarithm, at most 0


class GatedDeltaNet(nnx.Module):
    """Convolves queries, keys and values, runs the recurrence, norms and gates its outputs."""

    def __init__(
        self,
        shape: DeltaShape,
        sources: DeltaSources,
        form: WeightForm,
        *,
        opens: Activation = silu,  # of the gate
    ) -> None:
        self.shape, self.opens = shape, opens
        axes, values = shape.axes(form.layout.shards("heads")), shape.parts[2]
        axis = axes[2]

        def linear(outputs: int, source: Names, axis: str | None = axis) -> Linear:
            return Linear(outputs, shape.embed, (axis, "embed"), source, form=form)

        def vector(source: Names) -> nnx.Param:
            return weight((shape.value_heads,), (axis,), source, dtype=jnp.float32)

        inputs = sources.q, sources.k, sources.v
        self.q, self.k, self.v = map(linear, shape.parts, inputs, axes)
        self.gate = linear(values, sources.gate)
        self.rate = linear(shape.value_heads, sources.rate)
        self.decay = linear(shape.value_heads, sources.decay)
        self.convolutions = nnx.List(
            [
                Convolution(channels, shape.width, source, axis=axis)
                for channels, source, axis in zip(
                    shape.parts, sources.convolutions, axes, strict=True
                )
            ]
        )
        self.log_decay = vector(sources.log_decay)
        self.decay_bias = vector(sources.decay_bias)
        self.norm = RmsNorm(shape.value_dim, sources.norm, epsilon=shape.epsilon)
        self.out = Linear(shape.embed, values, ("embed", axis), sources.out, form=form)

    def __call__(
        self, x: jax.Array, rotation: Rotary | None, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Returns f32[T, D] and the states with those of the new tokens."""
        rate = self.shape.most_rate * logistic(self.rate(x))
        tokens = DeltaInputs(self.q(x), self.k(x), self.v(x), rate, self.fading(x))
        blank = tuple(jnp.zeros(each.shape, jnp.float32) for each in self.shape.states(1))
        step = Remembering(self.convolutions, self._tokens, _remembered, lambda made, _: made)
        mixed, pages = batch.advance(pages, blank, tokens, step)
        made = self.norm(mixed) * self.opening(x).reshape(mixed.shape)
        return self.out(made.reshape(x.shape[0], -1)), pages

    def fading(self, x: jax.Array) -> jax.Array:
        """f32[T, Hv]: logarithm of what is left of a memory."""
        decay = softplus(self.decay(x) + self.decay_bias[...][None])
        return fading(self.log_decay[...])[None] * decay

    def opening(self, x: jax.Array) -> jax.Array:
        """f32[T, Hv * dv]: multiplies the outputs."""
        return self.opens(self.gate(x))

    def _tokens(
        self, convolved: Sequence[jax.Array], given: DeltaInputs
    ) -> tuple[MemoryTokens, None]:
        """Return what the memory takes."""
        s = self.shape
        q, k, v = (silu(part) for part in convolved)
        each = s.value_heads // s.key_heads
        q, k = (_normed(part.reshape(-1, s.key_heads, s.key_dim)) for part in (q, k))
        q, k = (jnp.repeat(part, each, axis=1) for part in (q * s.key_dim**-0.5, k))
        v = v.reshape(-1, s.value_heads, s.value_dim)
        return MemoryTokens(k, v, q, given.decay, given.rate), None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSources:
    """Checkpoint sources of what differs in Kimi's delta attention.

    Projections may be of low rank: then there are two sources, with as many numbers between as a
    key has.
    """

    decay: tuple[Names, ...]
    gate: tuple[Names, ...]
    log_decay_shape: tuple[int, ...]  # one number for each head


class ChannelDeltaNet(GatedDeltaNet):
    """Kimi's delta attention: each row of a memory fades by itself, and sigmoids open the outputs.

    least_decay: None: softplus makes the decay; else what sigmoids make is multiplied by it.
    """

    def __init__(
        self,
        shape: DeltaShape,
        sources: DeltaSources,
        own: ChannelSources,
        form: WeightForm,
        *,
        least_decay: float | None = None,
    ) -> None:
        assert shape.key_heads == shape.value_heads
        assert shape.key_dim == shape.value_dim
        super().__init__(shape, sources, form)
        axis, wide = shape.axes(form.layout.shards("heads"))[2], shape.parts[0]
        self.least_decay = least_decay

        def projection(sources: tuple[Names, ...]) -> Projection:
            return Projection(shape.embed, shape.key_dim, wide, sources, axis, form)

        self.decay, self.gate = projection(own.decay), projection(own.gate)
        of_heads = [axis if size == shape.value_heads else None for size in own.log_decay_shape]
        source, f32 = sources.log_decay, jnp.float32
        self.log_decay = weight(own.log_decay_shape, tuple(of_heads), source, dtype=f32)
        self.decay_bias = weight((wide,), (axis,), sources.decay_bias, dtype=f32)

    def fading(self, x: jax.Array) -> jax.Array:
        """f32[T, H, dk]: logarithm of what is left of each row of a memory."""
        s, opening = self.shape, self.decay(x) + self.decay_bias[...][None]
        opening = opening.reshape(-1, s.key_heads, s.key_dim)
        rates = -fading(self.log_decay[...].reshape(-1))[None, :, None]
        if self.least_decay is None:
            return -rates * softplus(opening)
        return self.least_decay * logistic(rates * opening)

    def opening(self, x: jax.Array) -> jax.Array:
        return logistic(self.gate(x))


class Projection(nnx.Module):
    """A projection of a token, in one step or, of low rank, in two."""

    def __init__(
        self,
        embed: int,
        rank: int,
        outputs: int,
        sources: tuple[Names, ...],
        axis: str | None,
        form: WeightForm,
    ) -> None:
        sizes = [embed, outputs] if len(sources) == 1 else [embed, rank, outputs]
        self.steps = nnx.List(
            [
                Linear(
                    sizes[at + 1],
                    sizes[at],
                    (axis if at + 2 == len(sizes) else None, "embed" if at == 0 else None),
                    source,
                    form=form,
                )
                for at, source in enumerate(sources)
            ]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        for step in self.steps:
            x = step(x)
        return x


def _remembered(memory: jax.Array, tokens: MemoryTokens) -> tuple[jax.Array, jax.Array]:
    """As `delta_rule`."""
    k, v, q, decay, rate = tokens
    assert rate is not None, "it takes in a part of each token"
    return delta_rule(memory, q, k, v, rate, decay)


def delta_rule(
    memory: jax.Array,  # f32[H, dk, dv]
    q: jax.Array,  # f32[C, H, dk]
    k: jax.Array,
    v: jax.Array,  # f32[C, H, dv]
    rate: jax.Array,  # f32[C, H]
    decay: jax.Array,  # f32[C, H], or of each row f32[C, H, dk]: logarithms, at most 0
) -> tuple[jax.Array, jax.Array]:
    """Return the memory after C tokens, and their outputs f32[C, H, dv]."""
    so_far = jnp.cumsum(decay if decay.ndim == 3 else decay[..., None], axis=0)
    at = jnp.arange(q.shape[0])
    since = jnp.exp(jnp.minimum(so_far[:, None] - so_far[None], 0.0))  # [i, j, H, ..]: j before i
    faded = jnp.exp(so_far)
    remembered = jnp.einsum("chk,hkv->chv", k * faded, memory, precision=_EXACT)
    wanted = rate[..., None] * (v - remembered)
    likeness = _alike(k, k, since) * rate[:, None]
    below = jnp.where((at[:, None] > at[None])[..., None], likeness, 0.0)
    corrections = _solved(below, wanted)
    seen = jnp.where((at[:, None] >= at[None])[..., None], _alike(q, k, since), 0.0)
    made = jnp.einsum("chk,hkv->chv", q * faded, memory, precision=_EXACT)
    made = made + jnp.einsum("ijh,jhv->ihv", seen, corrections, precision=_EXACT)
    left = jnp.exp(so_far[-1:] - so_far)
    added = jnp.einsum("chk,chv->hkv", k * left, corrections, precision=_EXACT)
    return memory * jnp.exp(so_far[-1])[..., None] + added, made


def _alike(a: jax.Array, b: jax.Array, since: jax.Array) -> jax.Array:
    """f32[i, j, H]: products of f32[C, H, dk], faded by f32[C, C, H, 1] or f32[C, C, H, dk]."""
    if since.shape[-1] == 1:
        return jnp.einsum("ihk,jhk->ijh", a, b, precision=_EXACT) * since[..., 0]
    return jnp.sum(a[:, None] * b[None] * since, axis=-1)


def _solved(below: jax.Array, wanted: jax.Array) -> jax.Array:
    """Solve u[i] + sum over j < i of below[i, j] u[j] = wanted[i], for each head."""
    if below.shape[0] == 1:
        return wanted
    matrix = below.transpose(2, 0, 1) + jnp.eye(below.shape[0])[None]
    found = jax.scipy.linalg.solve_triangular(
        matrix, wanted.transpose(1, 0, 2), lower=True, unit_diagonal=True
    )
    return found.transpose(1, 0, 2)


def _normed(x: jax.Array) -> jax.Array:
    """x / sqrt(sum of squares + 1e-6)."""
    size = x.shape[-1]
    return unit(x, 1e-6 / size) * size**-0.5
