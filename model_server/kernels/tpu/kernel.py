"""Body of the TPU kernel and its scratch: write the step's tokens, then attend unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.queries import UnitKind
from model_server.kernels.tpu.reading import Fetcher, Masks
from model_server.kernels.tpu.sizes import DEPTH, AttentionShapes, Sizes, tile_of
from model_server.kernels.tpu.softmax import Queries, Scoring, Softmax
from model_server.kernels.tpu.units import Runs, Units
from model_server.kernels.tpu.writing import PageWriter

Ref = Any  # Pallas reference: device memory inside a kernel


class Scratch(NamedTuple):
    """Scratch kept between grid steps; the VMEM buffers come first."""

    written: LayerPages
    fetched: LayerPages
    queries: Any
    highest: Any
    total: Any
    output: Any
    masks: list[Any]
    cursor: Any
    reads: Any
    writes: Any
    arrived: Any


@dataclass(frozen=True, slots=True)
class TpuProgram:
    """Everything about the call that shapes determine."""

    problem: AttentionShapes
    sizes: Sizes
    kinds: tuple[UnitKind, ...]
    scoring: Scoring

    def kernel(
        self,
        units: Units,
        runs: Runs,
        new: LayerPages,
        sinks: list[Ref],
        marks: list[Ref],
        *rest: Any,
    ) -> None:
        """Run one grid step.

        sinks, marks: Refs per kind, or none. rest: Refs of queries per kind, pools, results per
        kind, pools, then scratch.
        """
        refs = iter(rest)
        queries = [next(refs) for _ in self.kinds]
        next(refs)  # input pools; the outputs alias them
        results = [next(refs) for _ in self.kinds]
        pools, scratch = next(refs), Scratch(*refs)
        writer = self._writer(runs, new, pools, scratch)
        fetcher = self._fetcher(units, marks, pools, scratch)
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _() -> None:
            writer.write_all()
            scratch.queries[...] = jnp.zeros(scratch.queries.shape, scratch.queries.dtype)
            fetcher.start()

        of_kinds = sinks or [None] * len(self.kinds)
        for kind, *refs in zip(self.kinds, queries, results, of_kinds, strict=True):
            inside = (step >= kind.first_step) & (step < kind.first_step + kind.steps)

            @pl.when(inside)
            def _(kind: UnitKind = kind, refs: list[Ref] = refs) -> None:
                self._step(kind, step - kind.first_step, fetcher, scratch, *refs)

    def _writer(
        self, runs: Runs, new: LayerPages, pools: LayerPages, scratch: Scratch
    ) -> PageWriter:
        return PageWriter(
            runs=runs,
            tokens=new,
            pools=pools,
            ring=scratch.written,
            reads=scratch.reads,
            writes=scratch.writes,
            group=self.sizes.group,
            places=self.sizes.writes,
        )

    def _fetcher(
        self, units: Units, marks: list[Ref], pools: LayerPages, scratch: Scratch
    ) -> Fetcher:
        return Fetcher(
            units=units,
            pools=pools,
            ring=scratch.fetched,
            arrived=scratch.arrived,
            cursor=scratch.cursor,
            row_of=table_of(self.problem, self.sizes),
            table=self.problem.table,
            page_size=self.problem.page_size,
            pages=self.sizes.pages,
            masks=Masks(self.kinds, marks, scratch.masks, scratch.arrived) if marks else None,
        )

    def _step(
        self,
        kind: UnitKind,
        step: jax.Array,
        fetcher: Fetcher,
        scratch: Scratch,
        queries: Ref,
        results: Ref,
        sinks: Ref | None,
    ) -> None:
        def one(index: jax.Array, _: None) -> None:
            unit = kind.first + step * kind.at_once + index
            numbers = queries.at[index]
            if kind.packed:
                self._unpack(numbers, scratch.queries)
                numbers = scratch.queries
            state = Softmax(
                highest=scratch.highest.at[:, : kind.rows],
                total=scratch.total.at[:, : kind.rows],
                output=scratch.output.at[:, : kind.rows],
            )
            state.clear(sinks)
            self._attend(kind, unit, numbers, state, fetcher)
            if kind.packed:
                self._pack(state.result(), results.at[index])
            else:
                results[index] = state.result()

        jax.lax.fori_loop(0, kind.at_once, one, None)

    def _attend(
        self, kind: UnitKind, unit: jax.Array, numbers: Ref, state: Softmax, fetcher: Fetcher
    ) -> None:
        units = fetcher.units
        queries = Queries(
            numbers=numbers,
            tile=tile_of(self.problem, self.sizes, kind.rows),
            per_query=kind.per_query,
            start=units.starts[unit],
            count=units.counts[unit],
            runs=_runs_of(units, unit),
        )
        first = units.first_pages[unit]

        def one(block: jax.Array, _: None) -> None:
            place = fetcher.next_block(unit, block)
            here = jax.tree.map(lambda ring: ring.at[place], fetcher.ring)
            position = (first + block * self.sizes.pages) * self.problem.page_size
            masks = fetcher.masks
            marked = queries if masks is None else replace(queries, chosen=masks.at(kind, place))
            state.add(marked, here, position, self.scoring)

        blocks = (units.end_pages[unit] - first + self.sizes.pages - 1) // self.sizes.pages
        jax.lax.fori_loop(0, blocks, one, None)

    def _unpack(self, packed: Ref, rows: Ref) -> None:
        """Copy [H, lanes] to [K, rows, lanes]; rows beyond the heads are left unchanged."""
        per_head = self.problem.rows
        for head in range(self.problem.kv_heads):
            rows[head, :per_head] = packed[head * per_head : (head + 1) * per_head]

    def _pack(self, rows: jax.Array, packed: Ref) -> None:
        per_head = self.problem.rows
        for head in range(self.problem.kv_heads):
            packed[head * per_head : (head + 1) * per_head] = rows[head, :per_head]

    def scratch(self, layer: LayerPages, marks: Sequence[jax.Array]) -> Scratch:
        p, s = self.problem, self.sizes
        rows = max(kind.rows for kind in self.kinds)

        def vmem(*shape: int, dtype: Any = jnp.float32) -> Any:
            return pltpu.VMEM(shape, dtype)

        return Scratch(
            written=written_ring(p, s, layer),
            fetched=fetched_ring(p, s, layer),
            queries=vmem(p.kv_heads, s.decode_rows, p.key_lanes),
            highest=vmem(p.kv_heads, rows, 1),
            total=vmem(p.kv_heads, rows, 1),
            output=vmem(p.kv_heads, rows, p.value_lanes),
            masks=[vmem(DEPTH, *each.shape[2:], dtype=each.dtype) for each in marks],
            cursor=pltpu.SMEM((4,), jnp.int32),
            reads=pltpu.SemaphoreType.DMA((s.writes,)),
            writes=pltpu.SemaphoreType.DMA((s.writes,)),
            arrived=pltpu.SemaphoreType.DMA((DEPTH,)),
        )


def written_ring(problem: AttentionShapes, sizes: Sizes, layer: LayerPages) -> LayerPages:
    """Return scratch for the groups of pages that are modified."""

    def ring(pool: jax.Array) -> Any:
        tokens = 1 if pool.shape[2] == 1 else sizes.group
        return pltpu.VMEM((sizes.writes, problem.kv_heads, tokens, pool.shape[3]), pool.dtype)

    return jax.tree.map(ring, layer)


def fetched_ring(problem: AttentionShapes, sizes: Sizes, layer: LayerPages) -> LayerPages:
    """Return scratch for fetched blocks; keys that double as values may be read in part."""

    def ring(pool: jax.Array) -> Any:
        heads, scales = problem.kv_heads, pool.shape[2] == 1
        inner = (sizes.pages, 1) if scales else (sizes.pages * problem.page_size,)
        part = not scales and layer.values is None
        width = problem.key_lanes if part else pool.shape[3]
        return pltpu.VMEM((DEPTH, heads, *inner, width), pool.dtype)

    return jax.tree.map(ring, layer)


def table_of(problem: AttentionShapes, sizes: Sizes) -> Callable[[jax.Array], jax.Array]:
    """Return the map of units to page tables."""
    decodes, parts = problem.decodes, problem.block // sizes.queries
    return lambda unit: jnp.where(unit < decodes, unit, decodes + (unit - decodes) // parts)


def _runs_of(units: Units, unit: jax.Array) -> tuple[tuple[jax.Array, jax.Array], ...]:
    if units.begins is None or units.ends is None:
        return ()
    number = units.starts.shape[0]
    places = [run * number + unit for run in range(units.runs_ahead)]
    return tuple((units.begins[place], units.ends[place]) for place in places)
