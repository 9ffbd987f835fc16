"""Inside the TPU kernel: write the step's new tokens to their pages.

Pages are modified in groups of tokens that memory can address: read, modified and written back,
many groups at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.pages import LANES
from model_server.kernels.tpu.units import Runs

Ref = Any  # Pallas reference: device memory inside a kernel


@dataclass(frozen=True)
class PageWriter:
    """Copies groups between the pages and a ring buffer in VMEM."""

    runs: Runs  # of Refs in SMEM
    tokens: LayerPages  # of Refs in VMEM: f32, padded by `group` (scales: LANES) on both sides
    pools: LayerPages  # of Refs
    ring: LayerPages  # of Refs in VMEM: `places` of every pool's groups
    reads: Ref  # semaphores, one per place
    writes: Ref
    group: int
    places: int

    def write_all(self) -> None:
        """Write all tokens; they are in their pages on return."""
        total = self.runs.total[0]
        ahead = self.places // 2

        def one(index: jax.Array, _: None) -> None:
            self._prepare(index + ahead, total)
            self._finish(index)

        jax.lax.fori_loop(0, ahead, lambda index, _: self._prepare(index, total), None)
        jax.lax.fori_loop(0, total, one, None)
        first = jnp.maximum(total - self.places, 0)
        jax.lax.fori_loop(first, total, lambda index, _: self._written(index), None)

    def _prepare(self, index: jax.Array, total: jax.Array) -> None:
        """Start reading a group into its place, once the place's last group is written back."""

        @pl.when(index < total)
        def _() -> None:
            @pl.when(index >= self.places)
            def _() -> None:
                self._written(index - self.places)

            @pl.when(self.runs.fresh[index] > 0)
            def _() -> None:
                for copy in self._copies(index, self.reads, back=False):
                    copy.start()

    def _finish(self, index: jax.Array) -> None:
        """Modify a group and start writing it back, unless the next run continues it."""
        fresh = self.runs.fresh[index] > 0

        @pl.when(fresh)
        def _() -> None:
            for copy in self._copies(index, self.reads, back=False):
                copy.wait()

        self._change(index, jnp.where(fresh, index, index - 1) % self.places)

        @pl.when(self.runs.final[index] > 0)
        def _() -> None:
            for copy in self._copies(index, self.writes, back=True):
                copy.start()

    def _written(self, index: jax.Array) -> None:
        @pl.when(self.runs.final[index] > 0)
        def _() -> None:
            for copy in self._copies(index, self.writes, back=True):
                copy.wait()

    def _copies(self, index: jax.Array, semaphores: Ref, *, back: bool) -> list[Any]:
        place, copies = index % self.places, []
        page, group = self.runs.pages[index], self.runs.groups[index]
        at = pl.ds(pl.multiple_of(group * self.group, self.group), self.group)
        pools, ring = jax.tree.leaves(self.pools), jax.tree.leaves(self.ring)
        for pool, places in zip(pools, ring, strict=True):
            whole = pool.shape[2] in (1, self.group)  # scales: a row for the whole page
            ends = (pool.at[page] if whole else pool.at[page, :, at], places.at[place])
            source, target = reversed(ends) if back else ends
            copies.append(pltpu.make_async_copy(source, target, semaphores.at[place]))
        return copies

    def _change(self, index: jax.Array, before: jax.Array) -> None:
        """Put a run's tokens over the contents of place `before`."""
        for ring, new in zip(self.ring[:2], self.tokens[:2], strict=True):
            if ring is None or new is None:
                continue
            for part in range(ring.shape[3] // LANES):
                at = (slice(None), slice(None), slice(part * LANES, (part + 1) * LANES))
                self._put(index, before, ring, at, self._rows(index, new.at[part]), axis=1)
        for ring, new in zip(self.ring[2:], self.tokens[2:], strict=True):
            if ring is not None:
                self._put(index, before, ring, (), self._lanes(index, new, ring.shape[3]), axis=2)

    def _put(
        self, index: jax.Array, before: jax.Array, ring: Ref, at: Any, new: jax.Array, axis: int
    ) -> None:
        token = jax.lax.broadcasted_iota(jnp.int32, new.shape, axis) - self.runs.offsets[index]
        mine = (token >= 0) & (token < self.runs.counts[index])
        held = ring[(before, *at)].astype(jnp.float32)
        ring[(index % self.places, *at)] = jnp.where(mine, new, held).astype(ring.dtype)

    def _rows(self, index: jax.Array, new: Ref) -> jax.Array:
        """f32[K, group, LANES]: the new tokens, shifted to their offsets in the group."""
        first = self.runs.rows[index] - self.runs.offsets[index] + self.group
        return new[:, pl.ds(first, self.group), :]

    def _lanes(self, index: jax.Array, new: Ref, width: int) -> jax.Array:
        """f32[K, 1, width]: likewise for scales, read as aligned lanes and rotated into place."""
        first = self.runs.rows[index] - self.runs.offsets[index] + width
        whole = pl.multiple_of(first // LANES * LANES, LANES)
        window = new[:, :, pl.ds(whole, width + LANES)]
        return pltpu.roll(window, (width + LANES) - (first - whole), 2)[:, :, :width]
