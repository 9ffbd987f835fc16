"""Weights that keep what they are multiplied with, for calibrated quantisation.

A module with such weights runs without jit (`jax.disable_jit`): what a product takes is then an
array, whichever layer, family or loop over experts calls it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


class Moments:
    """Second moments of the rows that some matrices are multiplied with, by matrix number."""

    def __init__(self, wanted: Collection[int]) -> None:
        self._wanted = frozenset(wanted)
        self.sums: dict[int, jax.Array] = {}  # f32[in, in]: x^T x, summed over rows
        self.rows: dict[int, int] = {}  # those that are not zero, as padding is

    def add(self, number: int, x: jax.Array) -> None:
        """Add rows f32[T, in]; those of a matrix that is not wanted are let go."""
        if number not in self._wanted:
            return
        rows = x.astype(jnp.float32)
        seen = lax.dot_general(rows, rows, (((0,), (0,)), ((), ())), precision="highest")
        self.sums[number] = self.sums[number] + seen if number in self.sums else seen
        self.rows[number] = self.rows.get(number, 0) + int(jnp.any(rows != 0, axis=1).sum())


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Observed:
    """A plain weight [out, in], or those of E experts; each matrix has a number."""

    values: jax.Array  # [..., out, in]
    numbers: jax.Array  # i32[...]
    moments: Moments = field(metadata={"static": True})

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def project(self, x: jax.Array, live: jax.Array | None = None) -> jax.Array:
        """[T, in] times the transposed matrix: f32[T, out]. All rows are live."""
        self.moments.add(int(self.numbers), x)
        seen, across = x.astype(self.values.dtype), (((1,), (1,)), ((), ()))
        return lax.dot_general(seen, self.values, across, preferred_element_type=jnp.float32)
