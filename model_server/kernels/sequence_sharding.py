"""Sequence parallelism: sharding the rows of a step over one mesh axis.

Between attention and feed-forwards every device keeps and norms its share of the rows; XLA gathers
them where a product needs them.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_FREE = PartitionSpec.UNCONSTRAINED


@dataclass(frozen=True, slots=True)
class SequenceSharding:
    """The axis that shards rows; arrays it does not divide evenly are left as they are."""

    mesh: Mesh
    axis: str
    attention: bool  # also shards attention; False if this axis already shards the heads

    def rows(self, x: jax.Array) -> jax.Array:
        """Shard the residual stream [T, D]."""
        return self._divided(x, None)

    def queries(self, x: jax.Array) -> jax.Array:
        """Shard decode rows or prompt blocks, the first dimension."""
        return self._divided(x, _FREE) if self.attention else x

    def gathered(self, x: jax.Array) -> jax.Array:
        """Gather all rows onto every device of the axis: each holds pages of all sequences."""
        return self._lie(x, None, _FREE)

    def _divided(self, x: jax.Array, others: object) -> jax.Array:
        return x if x.shape[0] % self.mesh.shape[self.axis] else self._lie(x, self.axis, others)

    def _lie(self, x: jax.Array, first: str | None, others: object) -> jax.Array:
        spec = PartitionSpec(first, *[others] * (x.ndim - 1))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))
