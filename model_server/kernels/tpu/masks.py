"""Inside the TPU kernel: the tokens that queries attend to, fetched beside the pages.

A mark per query and token, cut into the blocks in which pages are fetched, so that a block's marks
are one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.chosen import Chosen
from model_server.kernels.tpu.queries import UnitKind
from model_server.kernels.tpu.sizes import PACKED, AttentionShapes, Sizes

Ref = Any  # Pallas reference: device memory inside a kernel


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
