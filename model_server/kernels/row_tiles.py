"""Tile visits of a grouped product: rows are sorted by group, and groups end anywhere."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Visits(NamedTuple):
    """One entry per tile and group that share a row; no row is copied to fill a tile."""

    expert: jax.Array  # i32[most visits]: the group
    tile: jax.Array  # i32[most visits]; visits of one tile are adjacent
    starts: jax.Array  # i32[E]: first row of each group
    ends: jax.Array  # i32[E]
    total: jax.Array  # i32[1]: number of visits, at least one

    @property
    def count(self) -> jax.Array:
        return self.total[0]


def visits_of(sizes: jax.Array, tiles: int, rows: int) -> Visits:
    """Plan the visits.

    sizes: i32[E], rows of each group; they fill the first of `tiles` tiles of `rows` rows.
    """
    ends = jnp.cumsum(sizes)
    starts = ends - sizes
    firsts = starts // rows
    counts = jnp.where(sizes > 0, (ends - 1) // rows - firsts + 1, 0)
    last = jnp.cumsum(counts)
    numbers = jnp.arange(tiles + len(sizes) - 1, dtype=jnp.int32)
    # Entries after the last visit are never used; they only need valid indices.
    expert = jnp.sum(last[None] <= numbers[:, None], axis=1, dtype=jnp.int32)
    expert = jnp.minimum(expert, len(sizes) - 1)
    tile = firsts[expert] + numbers - (last - counts)[expert]
    return Visits(
        expert,
        jnp.clip(tile, 0, tiles - 1).astype(jnp.int32),
        starts.astype(jnp.int32),
        ends.astype(jnp.int32),
        jnp.maximum(last[-1:], 1).astype(jnp.int32),
    )
