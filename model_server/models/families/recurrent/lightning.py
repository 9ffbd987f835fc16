"""Lightning attention: a sum of outer products of keys and values that fades at a fixed rate.

Source: Qin et al. 2024 (arXiv:2401.04658). A head's memory h, [dv, dk], becomes exp(-s) h + v k,
and its output is h q. The rate s is that of a head in its layer, and not learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.as_published import fading_rates
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import StateArray
from model_server.kernels.states import MemoryTokens, Remembering, State
from model_server.models.layers.layers import Activation, Branches, Linear, RmsNorm
from model_server.models.layers.state_space import remembered
from model_server.models.weights.source import GroupRows, Tensor
from model_server.models.weights.weight import WeightForm


@dataclass(frozen=True, slots=True)
class FadingRates:
    """Rates of a layer's heads, given to it as positions are to others; hashable like a `Rope`."""

    rates: tuple[float, ...]
    short_context: None = None  # as a rope may have

    @classmethod
    def of(cls, layer: int, layers: int, heads: int) -> FadingRates:
        """Rates fall from head to head, and from the first layer to the last."""
        return cls(fading_rates(layer, layers, heads))

    def at(self, positions: jax.Array) -> jax.Array:
        """f32[H], the same at all positions."""
        return jnp.asarray(self.rates, jnp.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LightningShape:
    embed: int
    heads: int
    head_dim: int

    def axis(self, shards: int) -> str | None:
        return None if shards == 1 or self.heads % shards else "heads"

    def states(self, shards: int) -> tuple[StateArray, ...]:
        return (StateArray((self.heads, self.head_dim, self.head_dim), self.axis(shards)),)


class LightningInputs(NamedTuple):
    """Inputs of the recurrence, f32[C, H, Q] each; in the layer [T, ...]."""

    q: jax.Array
    k: jax.Array
    v: jax.Array


class LightningAttention(nnx.Module):
    """Activates queries, keys and values, runs the recurrence, norms and gates its outputs."""

    def __init__(
        self, shape: LightningShape, prefix: str, form: WeightForm, *, activation: Activation
    ) -> None:
        self.shape, self.activation = shape, activation
        axis, size = shape.axis(form.layout.shards("heads")), shape.head_dim
        inner, joined = shape.heads * size, Tensor(f"{prefix}.qkv_proj.weight")
        parts = [(size * part, size * (part + 1)) for part in range(3)]
        self.qkv = Branches(
            [inner] * 3,
            shape.embed,
            [(axis, "embed")] * 3,
            [GroupRows(joined, 3 * size, *part, groups=shape.heads) for part in parts],
            form=form,
        )
        gate, out = f"{prefix}.output_gate.weight", f"{prefix}.out_proj.weight"
        self.gate = Linear(inner, shape.embed, (axis, "embed"), (gate,), form=form)
        self.norm = RmsNorm(inner, (f"{prefix}.norm.weight",), epsilon=1e-6)
        self.out = Linear(shape.embed, inner, ("embed", axis), (out,), form=form)

    def __call__(
        self, x: jax.Array, rotation: Any, pages: State, batch: PagedBatch
    ) -> tuple[jax.Array, State]:
        """Returns f32[T, D] and the states with those of the new tokens.

        rotation: f32[H], the rates at which heads forget.
        """
        s = self.shape
        made = (self.activation(part) for part in self.qkv(x))
        tokens = LightningInputs(*(part.reshape(-1, s.heads, s.head_dim) for part in made))
        blank = tuple(jnp.zeros(each.shape, jnp.float32) for each in s.states(1))

        def prepared(
            before: State, given: Any, count: jax.Array
        ) -> tuple[State, MemoryTokens, None]:
            there = jnp.arange(given.q.shape[0]) < count
            keys = jnp.where(there[:, None, None], given.k, 0.0)
            decay = jnp.where(there[:, None], -rotation[None], 0.0)
            return before, MemoryTokens(given.v, keys, given.q, decay), None

        step = Remembering(prepared, remembered, lambda made, _: made)
        mixed, pages = batch.advance(pages, blank, tokens, step)
        normed = self.norm(mixed.reshape(x.shape[0], -1))
        return self.out(jax.nn.sigmoid(self.gate(x)) * normed), pages
