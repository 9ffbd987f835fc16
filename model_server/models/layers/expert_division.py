"""Experts on a mesh: whole experts over one axis, each expert's width over another.

Every device computes its share for all tokens and the results are summed: with the loop of
`expert_blocks`, or on a TPU with the grouped products of `expert_groups`. A dimension that does not
divide evenly is replicated.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from model_server.models.layers.expert_blocks import (
    ExpertBiases,
    Kernel,
    Kernels,
    count_of,
    in_blocks,
)
from model_server.models.layers.expert_groups import can_group, in_groups
from model_server.models.layers.layers import Activation
from model_server.models.layers.routing import Routes
from model_server.models.weights.divided_product import mesh_of
from model_server.models.weights.sharding import Layout


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
    ) -> jax.Array:
        """As `in_blocks` over all experts, each device computing its own share."""
        if self.platform == "tpu" and can_group(kernels):
            return self._in_groups(x, routes, kernels, activation, biases)
        return self._in_blocks(x, routes, kernels, activation, biases)

    def _in_blocks(
        self,
        x: jax.Array,
        routes: Routes,
        kernels: Kernels,
        activation: Activation,
        biases: ExpertBiases | None,
    ) -> jax.Array:
        count = count_of(kernels)
        on_one = functools.partial(in_blocks, weigh_inputs=self.weigh_inputs)
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
