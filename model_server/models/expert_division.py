"""Experts on a mesh: whole experts over one axis, a part of each one's width over another.

Every device runs the loop of `expert_blocks` over what it holds, for all tokens, and the sums are
added up. Experts that do not divide evenly lie whole, and so does a width that does not.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from model_server.models.expert_blocks import Kernel, Kernels, count_of, in_blocks
from model_server.models.layers import Activation
from model_server.models.routing import Routes
from model_server.models.sharding import Layout


@dataclass(frozen=True, slots=True)
class ExpertDivision:
    """The mesh axes that divide the experts of a layer, and the width of each."""

    experts: str | None
    ffw: str | None

    @classmethod
    def of(cls, kernels: Kernels, layout: Layout) -> ExpertDivision:
        """As the rules say, where the sizes allow it; one axis divides one of the two."""
        whole = count_of(kernels) % layout.shards("experts")
        experts, ffw = None if whole else layout.axis("experts"), layout.axis("ffw")
        widths = {array.shape[2] for array in jax.tree.leaves(kernels.down)} - {1}  # and of scales
        uneven = any(width % layout.shards("ffw") for width in widths)
        return cls(experts, None if uneven or ffw == experts else ffw)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes whose devices hold different parts."""
        return tuple(axis for axis in (self.experts, self.ffw) if axis is not None)

    def run(
        self, x: jax.Array, routes: Routes, kernels: Kernels, activation: Activation
    ) -> jax.Array:
        """As `in_blocks` over all experts, every device on what it holds of them."""
        count = count_of(kernels)
        if not self.axes:
            return in_blocks(x, routes, kernels, activation, 0, count)
        mesh: Any = jax.typeof(jax.tree.leaves(kernels)[0]).sharding.mesh
        assert not mesh.empty, "weights on several devices carry their mesh"

        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(), self._specs(kernels)),
            out_specs=PartitionSpec(),
            axis_names=set(self.axes),
            check_vma=False,
        )
        def each(x: jax.Array, routes: Routes, held: Kernels) -> jax.Array:
            first = jax.lax.axis_index(self.experts) * count_of(held) if self.experts else 0
            return jax.lax.psum(in_blocks(x, routes, held, activation, first, count), self.axes)

        return each(x, routes, kernels)

    def _specs(self, kernels: Kernels) -> Kernels:
        """How these axes divide every array of the kernels."""

        def up(kernel: Kernel) -> Any:
            return jax.tree.map(lambda _: PartitionSpec(self.experts, self.ffw), kernel)

        def down(array: jax.Array) -> PartitionSpec:
            return PartitionSpec(self.experts, None, None if array.shape[2] == 1 else self.ffw)

        return Kernels(up(kernels.gate), up(kernels.up), jax.tree.map(down, kernels.down))
