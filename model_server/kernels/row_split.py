"""Dividing the rows of a step over one axis of a mesh: sequence parallelism.

Between attention and feed-forwards every device keeps and norms a part of the rows; XLA puts them
together where a product needs them. Says where rows lie, never what they hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_FREE = PartitionSpec.UNCONSTRAINED


@dataclass(frozen=True, slots=True)
class RowSplit:
    """The axis that divides rows; what it does not divide evenly is left as it lies."""

    mesh: Mesh
    axis: str
    attention: bool  # also what attends: False where this axis divides the heads already

    def rows(self, x: jax.Array) -> jax.Array:
        """Divide the residual stream [T, D]."""
        return self._divided(x, None)

    def queries(self, x: jax.Array) -> jax.Array:
        """Divide decode rows or prompt blocks, the first dimension."""
        return self._divided(x, _FREE) if self.attention else x

    def gathered(self, x: jax.Array) -> jax.Array:
        """Every row on every device of the axis: each of them holds pages of all sequences."""
        return self._lie(x, None, _FREE)

    def _divided(self, x: jax.Array, others: object) -> jax.Array:
        return x if x.shape[0] % self.mesh.shape[self.axis] else self._lie(x, self.axis, others)

    def _lie(self, x: jax.Array, first: str | None, others: object) -> jax.Array:
        spec = PartitionSpec(first, *[others] * (x.ndim - 1))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))
