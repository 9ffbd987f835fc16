"""Mixture of experts: many small feed-forwards, a few of them used per token."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from model_server.models.layers.activations import Activation
from model_server.models.layers.expert_blocks import (
    ExpertBiases,
    Kernel,
    Kernels,
    count_of,
    in_blocks,
)
from model_server.models.layers.layers import LiveRows, Names, live_of, sum_in_order
from model_server.models.layers.routing import Routes
from model_server.models.layers.shown_routes import note_routes
from model_server.models.layers.sorted_experts import TiledKernels, can_group, in_groups, in_tiles
from model_server.models.weights.divided_product import mesh_of
from model_server.models.weights.sharding import Layout
from model_server.models.weights.source import Portion, Stacked, Tensor, Transposed
from model_server.models.weights.tiled import TiledExperts
from model_server.models.weights.weight import WeightForm, weight

# Experts on a mesh: whole experts over one axis, each expert's width over another.
#
# Every device computes its share for all tokens and the results are summed: with the loop of
# `expert_blocks`, or on a TPU with the grouped products of `sorted_experts`. A dimension that does
# not divide evenly is replicated.


@dataclass(frozen=True, slots=True)
class ExpertDivision:
    """Mesh axes that shard a layer's experts, their width and their inputs."""

    experts: str | None
    ffw: str | None
    embed: str | None = None  # used on a TPU, where no axis is left to XLA
    rows: str | None = None  # rows of a step, likewise
    platform: str = "cpu"
    interpret: bool = False  # run TPU kernels without a TPU, for tests
    weigh_inputs: bool = False  # as of `in_blocks`

    @classmethod
    def of(cls, kernels: Kernels, layout: Layout, *, weigh_inputs: bool = False) -> ExpertDivision:
        """Apply the rules where the sizes allow it; a mesh axis shards one dimension at most."""
        whole = count_of(kernels) % layout.shards("experts")
        experts, ffw = None if whole else layout.axis("experts"), layout.axis("ffw")
        if ffw == experts or _uneven(kernels.down, layout.shards("ffw")):
            ffw = None
        embed, rows = layout.axis("embed"), layout.axis("tokens")
        if embed in (experts, ffw) or _uneven(kernels.up, layout.shards("embed")):
            embed = None
        if rows in (experts, ffw, embed):
            rows = None
        return cls(experts, ffw, embed, rows, layout.platform, weigh_inputs=weigh_inputs)

    @property
    def axes(self) -> tuple[str, ...]:
        """Mesh axes whose devices hold partial sums of a token's output."""
        return tuple(axis for axis in (self.experts, self.ffw) if axis is not None)

    def run(
        self,
        x: jax.Array,
        routes: Routes,
        kernels: Kernels,
        activation: Activation,
        biases: ExpertBiases | None = None,
        *,
        native: bool = False,
    ) -> jax.Array:
        """As `in_blocks` over all experts, each device computing its own share."""
        if self.platform == "tpu" and can_group(kernels):
            return self._in_groups(x, routes, kernels, activation, biases)
        return self._in_blocks(x, routes, kernels, activation, biases, native)

    def _in_blocks(
        self,
        x: jax.Array,
        routes: Routes,
        kernels: Kernels,
        activation: Activation,
        biases: ExpertBiases | None,
        native: bool,
    ) -> jax.Array:
        count = count_of(kernels)
        on_one = functools.partial(in_blocks, weigh_inputs=self.weigh_inputs, native=native)
        if not self.axes:
            return on_one(x, routes, kernels, activation, 0, count, biases=biases)
        mesh = mesh_of(jax.tree.leaves(kernels)[0])
        assert not mesh.empty, "weights on several devices carry their mesh"

        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(
                *(PartitionSpec(), PartitionSpec()),
                *(self._specs(kernels), self._bias_specs(biases)),
            ),
            out_specs=PartitionSpec(),
            axis_names=set(self.axes),
            check_vma=False,
        )
        def each(
            x: jax.Array, routes: Routes, held: Kernels, biases: ExpertBiases | None
        ) -> jax.Array:
            made = on_one(x, routes, held, activation, self._first(held), count, biases=biases)
            return jax.lax.psum(made, self.axes)

        return each(x, routes, kernels, biases)

    def _in_groups(
        self,
        x: jax.Array,
        routes: Routes,
        kernels: Kernels,
        activation: Activation,
        biases: ExpertBiases | None,
    ) -> jax.Array:
        mesh = mesh_of(jax.tree.leaves(kernels)[0])
        on_one = functools.partial(
            in_groups, weigh_inputs=self.weigh_inputs, interpret=self.interpret
        )
        if mesh.empty:
            return on_one(x, routes, kernels, activation, 0, biases=biases)
        rows = None if self.rows is None or len(x) % mesh.shape[self.rows] else self.rows
        seen, chosen = PartitionSpec(rows, self.embed), PartitionSpec(rows)

        # Over every axis: XLA cannot partition a kernel.
        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(
                *(seen, chosen),
                *(self._specs(kernels, self.embed), self._bias_specs(biases)),
            ),
            out_specs=seen,
            check_vma=False,
        )
        def each(
            x: jax.Array, routes: Routes, held: Kernels, biases: ExpertBiases | None
        ) -> jax.Array:
            add = None if self.embed is None else functools.partial(_sum, axis=self.embed)
            first = self._first(held)
            made = on_one(x, routes, held, activation, first, biases=biases, sum_inputs=add)
            return jax.lax.psum(made, self.axes) if self.axes else made

        return each(x, routes, kernels, biases)

    def _first(self, held: Kernels) -> jax.Array | int:
        return jax.lax.axis_index(self.experts) * count_of(held) if self.experts else 0

    def _bias_specs(self, biases: ExpertBiases | None) -> Any:
        return jax.tree.map(lambda _: PartitionSpec(self.experts, self.ffw), biases)

    def _specs(self, kernels: Kernels, embed: str | None = None) -> Kernels:
        def lying(kernel: Kernel | None, outputs: str | None, inputs: str | None) -> Any:
            def spec(array: jax.Array) -> PartitionSpec:
                return PartitionSpec(self.experts, outputs, None if array.shape[2] == 1 else inputs)

            return jax.tree.map(spec, kernel)

        return Kernels(
            lying(kernels.gate, self.ffw, embed),
            lying(kernels.up, self.ffw, embed),
            lying(kernels.down, embed, self.ffw),
        )


def _sum(made: jax.Array, axis: str) -> jax.Array:
    return jax.lax.psum(made, axis)


def _uneven(kernel: Kernel, shards: int) -> bool:
    """True if this many shards of the inputs would be unequal or split a block of scales."""
    arrays = [array for array in jax.tree.leaves(kernel) if array.shape[2] > 1]
    # A shard of a row must be whole bytes.
    units = [shards * 2 if array.dtype == jnp.int4 else shards for array in arrays]
    return any(array.shape[2] % unit for array, unit in zip(arrays, units, strict=True))


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
        self.gated, self.count = sources.gate is not None, sources.count
        self.live: LiveRows = nnx.data(None)
        self._declare(embed, ffw, sources, form, tiles=form.tiles)
        held = tuple(part.get_value() for part in self._weights if part is not None)
        if form.tiles and not all(isinstance(each, TiledExperts) for each in held):
            self._declare(embed, ffw, sources, form, tiles=False)  # all are native, or none
        self.activation, self.weigh_inputs = activation, weigh_inputs
        self.division = (
            None
            if self.in_tiles
            else ExpertDivision.of(self._kernels(), form.layout, weigh_inputs=weigh_inputs)
        )
        self.biased = sources.biases is not None
        if sources.biases is not None:
            gate, up, down = sources.biases
            self.gate_bias, self.up_bias, self.down_bias = (
                weight((sources.count, size), axes[:2], source, dtype=jnp.float32, spread=0.0)
                for size, axes, source in (
                    (ffw, _UP_AXES, gate),
                    (ffw, _UP_AXES, up),
                    (embed, _DOWN_AXES, down),
                )
            )

    def _declare(
        self, embed: int, ffw: int, sources: ExpertSources, form: WeightForm, *, tiles: bool
    ) -> None:
        def stacked(outputs: int, inputs: int, axes: Any, source: Names) -> nnx.Param:
            return weight(
                (sources.count, outputs, inputs),
                axes,
                source,
                dtype=form.dtype,
                spread=0.02,
                quantization=form.quantization,
                layout=form.layout,
                tiles=tiles,
            )

        if sources.gate is not None:
            self.gate = stacked(ffw, embed, _UP_AXES, sources.gate)
        self.up = stacked(ffw, embed, _UP_AXES, sources.up)
        self.down = stacked(embed, ffw, _DOWN_AXES, sources.down)

    @property
    def in_tiles(self) -> bool:
        """True if the native products of experts compute it."""
        return isinstance(self.up.get_value(), TiledExperts)

    def __call__(self, x: jax.Array, routes: Routes) -> jax.Array:
        note_routes(routes.experts, self.count)
        biases = ExpertBiases(self.gate_bias[...], self.up_bias[...]) if self.biased else None
        if self.division is None:
            made = in_tiles(
                *(x, routes, TiledKernels(*self._values), self.activation, live_of(self)),
                biases=biases,
                weigh_inputs=self.weigh_inputs,
            )
        else:
            run = functools.partial(self.division.run, native=self.live is not None)
            made = run(x, routes, self._kernels(), self.activation, biases)
        if not self.biased:
            return made
        added = self.down_bias[...]
        return made + (weighted_rows if self.live is None else rows_in_order)(routes, added)

    @property
    def _weights(self) -> tuple[nnx.Param | None, nnx.Param, nnx.Param]:
        return self.gate if self.gated else None, self.up, self.down

    @property
    def _values(self) -> Any:
        return tuple(None if each is None else each.get_value() for each in self._weights)

    def _kernels(self) -> Kernels:
        return Kernels(*self._values)


def weighted_rows(routes: Routes, table: jax.Array) -> jax.Array:
    """Sum the rows of f32[E, D] that each token's routes name, weighted: f32[T, D]."""
    chosen = jax.nn.one_hot(routes.experts, table.shape[0], dtype=jnp.float32)
    shares = jnp.sum(chosen * routes.weights[..., None], axis=1)
    return jnp.einsum("te,ed->td", shares, table, precision="highest")


def rows_in_order(routes: Routes, table: jax.Array) -> jax.Array:
    """As `weighted_rows`, added in the order of the routes."""
    taken = table.at[routes.experts].get(mode="promise_in_bounds")
    return sum_in_order(taken * routes.weights[..., None], axis=1)


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
