"""Mixture of experts: many small feed-forwards, a few of them used per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from model_server.models.layers.expert_blocks import Kernels
from model_server.models.layers.expert_division import ExpertDivision
from model_server.models.layers.layers import Activation, Names
from model_server.models.layers.routing import Routes
from model_server.models.weights.source import Stacked, source_of
from model_server.models.weights.weight import WeightForm, weight

_UP_AXES, _DOWN_AXES = ("experts", "ffw", "embed"), ("experts", "embed", "ffw")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSources:
    gate: Sequence[Names]
    up: Sequence[Names]
    down: Sequence[Names]

    @classmethod
    def hugging_face(
        cls, prefix: str, count: int, *, gate: str, up: str, down: str
    ) -> ExpertSources:
        def of(part: str) -> list[Names]:
            return [(f"{prefix}.{expert}.{part}.weight",) for expert in range(count)]

        return cls(gate=of(gate), up=of(up), down=of(down))


class Experts(nnx.Module):
    """Gated feed-forwards; a token gets the weighted sum of the experts on its routes."""

    def __init__(
        self,
        embed: int,
        ffw: int,
        sources: ExpertSources,
        *,
        activation: Activation,
        form: WeightForm,
    ) -> None:
        count = len(sources.gate)

        def stacked(outputs: int, inputs: int, axes: Any, parts: Sequence[Names]) -> nnx.Param:
            return weight(
                (count, outputs, inputs),
                axes,
                Stacked(tuple(map(source_of, parts))),
                dtype=form.dtype,
                spread=0.02,
                quantization=form.quantization,
                layout=form.layout,
            )

        self.gate = stacked(ffw, embed, _UP_AXES, sources.gate)
        self.up = stacked(ffw, embed, _UP_AXES, sources.up)
        self.down = stacked(embed, ffw, _DOWN_AXES, sources.down)
        self.activation = activation
        self.division = ExpertDivision.of(self._kernels(), form.layout)

    def __call__(self, x: jax.Array, routes: Routes) -> jax.Array:
        return self.division.run(x, routes, self._kernels(), self.activation)

    def _kernels(self) -> Kernels:
        return Kernels(*(part.get_value() for part in (self.gate, self.up, self.down)))


class RoutedFeedForward(nnx.Module):
    """A router, its experts and, optionally, a shared feed-forward that every token uses."""

    def __init__(
        self, router: nnx.Module, experts: Experts, shared: nnx.Module | None = None
    ) -> None:
        self.router = router
        self.experts = experts
        self.shared = shared

    def __call__(self, x: jax.Array) -> jax.Array:
        routed = self.experts(x, self.router(x))
        return routed if self.shared is None else routed + self.shared(x)
