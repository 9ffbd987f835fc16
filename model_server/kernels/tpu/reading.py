"""Inside the TPU kernel: fetch pages ahead of the attention that uses them.

Pages are fetched in blocks through a ring buffer in VMEM, across units without a pause: while one
unit is computed, the first blocks of the next ones arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.chosen import Chosen
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.queries import UnitKind
from model_server.kernels.tpu.sizes import DEPTH, PACKED, AttentionShapes, Sizes, cleared_tokens
from model_server.kernels.tpu.units import Units

Ref = Any  # Pallas reference: device memory inside a kernel
_UNIT, _BLOCK, _FETCHED, _READ = range(4)  # cursor fields


@dataclass(frozen=True)
class Fetcher:
    """Ring buffer of fetched blocks; the cursor says what to fetch next."""

    units: Units  # of Refs in SMEM
    pools: LayerPages  # of Refs
    ring: LayerPages  # of Refs in VMEM: rows [DEPTH, K, pages * G, lanes], scales [., K, pages, ..]
    arrived: Ref  # semaphores, one per place
    cursor: Ref  # i32[4] in SMEM
    row_of: Callable[[jax.Array], jax.Array]  # unit -> page table
    table: int
    page_size: int
    pages: int
    first_lane: int = 0  # of the rows that are fetched, as wide as the ring's
    masks: Masks | None = None  # None: queries attend to all tokens

    def start(self) -> None:
        """Fill the ring, except the place being computed on."""
        self.cursor[_UNIT] = self.units.busy[0]
        for field in (_BLOCK, _FETCHED, _READ):
            self.cursor[field] = 0
        for _ in range(DEPTH - 1):
            self._fetch()

    def next_block(self, unit: jax.Array, block: jax.Array) -> jax.Array:
        """Fetch one more block ahead, wait for this one and return its place."""
        self._fetch()
        place = self.cursor[_READ] % DEPTH
        self.cursor[_READ] += 1

        def one(index: jax.Array, _: None) -> None:
            for copy in self._copies(jnp.int32(0), place, index):
                copy.wait()

        jax.lax.fori_loop(0, self._count(unit, block), one, None)
        if self.masks is not None:
            self.masks.wait(unit, block, place)
        return place

    def _fetch(self) -> None:
        unit, block = self.cursor[_UNIT], self.cursor[_BLOCK]

        @pl.when(unit < self.units.starts.shape[0])
        def _() -> None:
            place = self.cursor[_FETCHED] % DEPTH
            count = self._count(unit, block)
            entry = self.row_of(unit) * self.table + self._first(unit, block)

            def one(index: jax.Array, _: None) -> None:
                for copy in self._copies(self.units.tables[entry + index], place, index):
                    copy.start()

            self._clear(place, count)
            jax.lax.fori_loop(0, count, one, None)
            if self.masks is not None:
                self.masks.start(unit, block, place)
            last = self._first(unit, block + 1) >= self.units.end_pages[unit]
            self.cursor[_UNIT] = jnp.where(last, self.units.busy[unit + 1], unit)
            self.cursor[_BLOCK] = jnp.where(last, 0, block + 1)
            self.cursor[_FETCHED] += 1

    def _first(self, unit: jax.Array, block: jax.Array) -> jax.Array:
        return self.units.first_pages[unit] + block * self.pages

    def _count(self, unit: jax.Array, block: jax.Array) -> jax.Array:
        return jnp.minimum(self.units.end_pages[unit] - self._first(unit, block), self.pages)

    def _copies(self, page: jax.Array, place: jax.Array, index: jax.Array) -> list[Any]:
        copies = []
        pools, ring = jax.tree.leaves(self.pools), jax.tree.leaves(self.ring)
        for pool, places in zip(pools, ring, strict=True):
            scales = pool.shape[2] == 1
            target = places.at[place, :, index if scales else self._tokens(index)]
            source = pool.at[page]
            if (width := places.shape[-1]) != pool.shape[3]:
                source = pool.at[page, :, :, self.first_lane : self.first_lane + width]
            copies.append(pltpu.make_async_copy(source, target, self.arrived.at[place]))
        return copies

    def _clear(self, place: jax.Array, count: jax.Array) -> None:
        """Zero the values of unfetched pages: a weight of 0 does not hide a NaN.

        Starts at the page after the last fetched one, or slightly before it.
        """
        values = self.ring.keys if self.ring.values is None else self.ring.values
        tokens = cleared_tokens(self.page_size)
        zeros = jnp.zeros((values.shape[1], tokens, values.shape[3]), values.dtype)

        def one(index: jax.Array, _: None) -> None:
            values[place, :, pl.ds(pl.multiple_of(index * tokens, tokens), tokens), :] = zeros

        first = count * self.page_size // tokens
        jax.lax.fori_loop(first, self.pages * self.page_size // tokens, one, None)

    def _tokens(self, index: jax.Array) -> Any:
        return pl.ds(pl.multiple_of(index * self.page_size, self.page_size), self.page_size)


@dataclass(frozen=True, slots=True)
class Masks:
    """Marks of every kind of unit in memory, and places for those of the fetched blocks."""

    kinds: Sequence[UnitKind]
    marks: Sequence[Ref]  # per kind [units, blocks, queries, tokens]; empty: all tokens are chosen
    rings: Sequence[Ref]  # per kind [DEPTH, queries, tokens]
    arrived: Ref  # semaphores, one per place

    def start(self, unit: jax.Array, block: jax.Array, place: jax.Array) -> None:
        """Start to fetch the marks of a unit's block."""
        self._each(unit, block, place, lambda copy: copy.start())

    def wait(self, unit: jax.Array, block: jax.Array, place: jax.Array) -> None:
        self._each(unit, block, place, lambda copy: copy.wait())

    def at(self, kind: UnitKind, place: jax.Array) -> Ref | None:
        """Return the marks [queries, tokens] at a place."""
        return self.rings[self.kinds.index(kind)].at[place] if self.rings else None

    def _each(self, unit: jax.Array, block: jax.Array, place: jax.Array, do: Any) -> None:
        for kind, marks, ring in zip(self.kinds, self.marks, self.rings, strict=bool(self.marks)):
            own = unit - kind.first

            @pl.when((own >= 0) & (own < kind.units))
            def _(own: jax.Array = own, marks: Ref = marks, ring: Ref = ring) -> None:
                do(
                    pltpu.make_async_copy(
                        marks.at[own, block], ring.at[place], self.arrived.at[place]
                    )
                )


def masks_of(
    problem: AttentionShapes, sizes: Sizes, kinds: Sequence[UnitKind], chosen: Chosen
) -> list[jax.Array]:
    """Marks per kind, 0 or 1; nothing if all tokens are chosen."""
    found: list[jax.Array] = []
    for kind in kinds:
        of_decodes = kind.first < problem.decodes
        given = chosen.decodes if of_decodes else chosen.blocks
        if given is None:
            return []
        count, high = (1, 1) if of_decodes else (sizes.queries, _up(sizes.queries, PACKED))
        rows = given.reshape(kind.units, count, -1)
        tokens = sizes.pages * problem.page_size
        blocks = -(-rows.shape[2] // tokens)
        more = blocks * tokens - rows.shape[2]
        rows = jnp.pad(rows, ((0, 0), (0, high - count), (0, more)))
        rows = rows.reshape(kind.units, high, blocks, tokens).swapaxes(1, 2)
        found.append(rows.astype(jnp.float32 if of_decodes else jnp.bfloat16))
    return found


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
