"""Mixture of experts: many small feed-forwards, a few of them used per token."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.expert_blocks import ExpertBiases, Kernels
from model_server.models.layers.expert_division import ExpertDivision
from model_server.models.layers.layers import Activation, Names
from model_server.models.layers.routing import Routes
from model_server.models.weights.source import Portion, Stacked, Tensor, Transposed
from model_server.models.weights.weight import WeightForm, weight

_UP_AXES, _DOWN_AXES = ("experts", "ffw", "embed"), ("experts", "embed", "ffw")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSources:
    """Sources of E matrices each: one per expert, or one [E, out, in] of them all."""

    count: int
    gate: Names | None  # None: not gated
    up: Names
    down: Names
    biases: tuple[Names, Names, Names] | None = None  # gated: of gate, up and down: [E, out]

    @classmethod
    def hugging_face(
        cls, prefix: str, count: int, *, gate: str | None, up: str, down: str
    ) -> ExpertSources:
        def of(part: str) -> Stacked:
            return Stacked(tuple(Tensor(f"{prefix}.{e}.{part}.weight") for e in range(count)))

        gated = None if gate is None else of(gate)
        return cls(count=count, gate=gated, up=of(up), down=of(down))

    @classmethod
    def together(
        cls, count: int, ffw: int, *, gate_up: str, down: str, turned: bool = False
    ) -> ExpertSources:
        """Sources in two tensors: gates above ups, [E, 2 F, D], and downs, [E, D, F].

        turned: [E, D, 2 F] and [E, F, D].
        """
        both, downs = (Transposed(Tensor(n)) if turned else Tensor(n) for n in (gate_up, down))
        gate, up = (Portion(both, 1, at, at + ffw, of=2 * ffw) for at in (0, ffw))
        return cls(count=count, gate=gate, up=up, down=downs)


class Experts(nnx.Module):
    """Feed-forwards, gated or not; a token gets the weighted sum of the experts on its routes."""

    def __init__(
        self,
        embed: int,
        ffw: int,
        sources: ExpertSources,
        *,
        activation: Activation,
        form: WeightForm,
        weigh_inputs: bool = False,
    ) -> None:
        count = sources.count

        def stacked(outputs: int, inputs: int, axes: Any, source: Names) -> nnx.Param:
            return weight(
                (count, outputs, inputs),
                axes,
                source,
                dtype=form.dtype,
                spread=0.02,
                quantization=form.quantization,
                layout=form.layout,
            )

        self.gated = sources.gate is not None
        if sources.gate is not None:
            self.gate = stacked(ffw, embed, _UP_AXES, sources.gate)
        self.up = stacked(ffw, embed, _UP_AXES, sources.up)
        self.down = stacked(embed, ffw, _DOWN_AXES, sources.down)
        self.activation = activation
        self.division = ExpertDivision.of(self._kernels(), form.layout, weigh_inputs=weigh_inputs)
        self.biased = sources.biases is not None
        if sources.biases is not None:
            gate, up, down = sources.biases
            self.gate_bias, self.up_bias, self.down_bias = (
                weight((count, size), axes[:2], source, dtype=jnp.float32, spread=0.0)
                for size, axes, source in (
                    (ffw, _UP_AXES, gate),
                    (ffw, _UP_AXES, up),
                    (embed, _DOWN_AXES, down),
                )
            )

    def __call__(self, x: jax.Array, routes: Routes) -> jax.Array:
        run = functools.partial(self.division.run, x, routes, self._kernels(), self.activation)
        if not self.biased:
            return run()
        made = run(ExpertBiases(self.gate_bias[...], self.up_bias[...]))
        return made + weighted_rows(routes, self.down_bias[...])

    def _kernels(self) -> Kernels:
        gate = self.gate.get_value() if self.gated else None
        return Kernels(gate, self.up.get_value(), self.down.get_value())


def weighted_rows(routes: Routes, table: jax.Array) -> jax.Array:
    """Sum the rows of f32[E, D] that each token's routes name, weighted: f32[T, D]."""
    chosen = jax.nn.one_hot(routes.experts, table.shape[0], dtype=jnp.float32)
    shares = jnp.sum(chosen * routes.weights[..., None], axis=1)
    return jnp.einsum("te,ed->td", shares, table, precision="highest")


class RoutedFeedForward(nnx.Module):
    """A router, its experts and, optionally, a shared feed-forward that every token uses."""

    def __init__(
        self,
        router: nnx.Module,
        experts: Experts | NarrowedExperts,
        shared: nnx.Module | None = None,
    ) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared

    def __call__(self, x: jax.Array) -> jax.Array:
        routed = self.experts(x, self.router(x))
        return routed if self.shared is None else routed + self.shared(x)


class NarrowedExperts(nnx.Module):
    """Experts that see a projection of a token, and whose sum is projected back."""

    def __init__(self, down: nnx.Module, experts: Experts, up: nnx.Module) -> None:
        self.down = down
        self.experts = experts
        self.up = up

    def __call__(self, x: jax.Array, routes: Routes) -> jax.Array:
        return self.up(self.experts(self.down(x), routes))


class HalvedFeedForward(nnx.Module):
    """Half of what a feed-forward makes: the average of routed and shared experts."""

    def __init__(self, ffw: nnx.Module) -> None:
        self.ffw = ffw

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.ffw(x) * 0.5
