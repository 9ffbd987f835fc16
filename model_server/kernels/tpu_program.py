"""The TPU kernel on one device: one call writes a layer's new tokens and attends to its pages.

Puts together what goes into the call and what comes out of it. Knows nothing of meshes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu_pages import LANES, lanes, new_tokens
from model_server.kernels.tpu_reading import Fetcher
from model_server.kernels.tpu_sizes import (
    DEPTH,
    VMEM_BYTES,
    VMEM_SPARE,
    Problem,
    Sizes,
    sizes_of,
    tile_of,
)
from model_server.kernels.tpu_softmax import Queries, Scoring, Softmax
from model_server.kernels.tpu_units import Runs, Units, runs_of, units_of
from model_server.kernels.tpu_writing import Writer

Ref = Any  # of Pallas: memory of the device inside a kernel


@dataclass(frozen=True, slots=True)
class Kind:
    """Units of one shape: decodes, or parts of prompt blocks."""

    first: int  # unit
    units: int
    at_once: int  # units of a step of the grid
    first_step: int
    rows: int  # per KV head, padded
    per_query: int  # rows that see the same tokens
    packed: bool  # the heads of a query lie one after the other, not padded per KV head

    @property
    def steps(self) -> int:
        return self.units // self.at_once

    def spec(self, shape: Sequence[int]) -> pl.BlockSpec:
        """Of queries or results [units, ...]; outside of its steps a kind keeps its last block."""

        def index(step: Any, *_: Any) -> tuple[Any, ...]:
            own = jnp.clip(step - self.first_step, 0, self.steps - 1)
            return (own, *[0] * (len(shape) - 1))

        return pl.BlockSpec((self.at_once, *shape[1:]), index)


class Scratch(NamedTuple):
    """What the kernel keeps between the steps of its grid."""

    written: LayerPages
    fetched: LayerPages
    queries: Any
    highest: Any
    total: Any
    output: Any
    cursor: Any
    reads: Any
    writes: Any
    arrived: Any


@dataclass(frozen=True, slots=True)
class Program:
    """Everything about the call that shapes decide."""

    problem: Problem
    sizes: Sizes
    kinds: tuple[Kind, ...]
    scoring: Scoring

    def kernel(self, units: Units, runs: Runs, new: LayerPages, *rest: Any) -> None:
        """Of Refs: queries per kind, pools, then results per kind, pools, and scratch."""
        refs = iter(rest)
        queries = [next(refs) for _ in self.kinds]
        next(refs)  # the pools as they come in; they go out in the same memory
        results = [next(refs) for _ in self.kinds]
        pools, scratch = next(refs), Scratch(*refs)
        writer = self._writer(runs, new, pools, scratch)
        fetcher = self._fetcher(units, pools, scratch)
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _() -> None:
            writer.write_all()
            scratch.queries[...] = jnp.zeros(scratch.queries.shape, scratch.queries.dtype)
            fetcher.start()

        for kind, numbers, result in zip(self.kinds, queries, results, strict=True):
            inside = (step >= kind.first_step) & (step < kind.first_step + kind.steps)

            @pl.when(inside)
            def _(kind: Kind = kind, numbers: Ref = numbers, result: Ref = result) -> None:
                self._step(kind, step - kind.first_step, fetcher, scratch, numbers, result)

    def _writer(self, runs: Runs, new: LayerPages, pools: LayerPages, scratch: Scratch) -> Writer:
        return Writer(
            runs=runs,
            tokens=new,
            pools=pools,
            ring=scratch.written,
            reads=scratch.reads,
            writes=scratch.writes,
            group=self.sizes.group,
            places=self.sizes.writes,
        )

    def _fetcher(self, units: Units, pools: LayerPages, scratch: Scratch) -> Fetcher:
        decodes, parts = self.problem.decodes, self.problem.block // self.sizes.queries
        return Fetcher(
            units=units,
            pools=pools,
            ring=scratch.fetched,
            arrived=scratch.arrived,
            cursor=scratch.cursor,
            row_of=lambda unit: jnp.where(
                unit < decodes, unit, decodes + (unit - decodes) // parts
            ),
            table=self.problem.table,
            page_size=self.problem.page_size,
            pages=self.sizes.pages,
        )

    def _step(
        self,
        kind: Kind,
        step: jax.Array,
        fetcher: Fetcher,
        scratch: Scratch,
        queries: Ref,
        results: Ref,
    ) -> None:
        def one(index: jax.Array, _: None) -> None:
            unit = kind.first + step * kind.at_once + index
            numbers = queries.at[index]
            if kind.packed:
                self._unpack(numbers, scratch.queries)
                numbers = scratch.queries
            state = Softmax(
                *(each.at[:, : kind.rows] for each in (scratch.highest, scratch.total)),
                scratch.output.at[:, : kind.rows],
            )
            self._attend(kind, unit, numbers, state, fetcher)
            if kind.packed:
                self._pack(state.result(), results.at[index])
            else:
                results[index] = state.result()

        jax.lax.fori_loop(0, kind.at_once, one, None)

    def _attend(
        self, kind: Kind, unit: jax.Array, numbers: Ref, state: Softmax, fetcher: Fetcher
    ) -> None:
        units = fetcher.units
        queries = Queries(
            numbers=numbers,
            tile=tile_of(self.problem, self.sizes, kind.rows),
            per_query=kind.per_query,
            start=units.starts[unit],
            count=units.counts[unit],
        )
        first = units.first_pages[unit]
        state.clear()

        def one(block: jax.Array, _: None) -> None:
            place = fetcher.next_block(unit, block)
            here = jax.tree.map(lambda ring: ring.at[place], fetcher.ring)
            position = (first + block * self.sizes.pages) * self.problem.page_size
            state.add(queries, here, position, self.scoring)

        blocks = (units.end_pages[unit] - first + self.sizes.pages - 1) // self.sizes.pages
        jax.lax.fori_loop(0, blocks, one, None)

    def _unpack(self, packed: Ref, rows: Ref) -> None:
        """From [H, lanes] to [K, rows, lanes]; rows beyond the heads stay what they were."""
        per_head = self.problem.rows
        for head in range(self.problem.kv_heads):
            rows[head, :per_head] = packed[head * per_head : (head + 1) * per_head]

    def _pack(self, rows: jax.Array, packed: Ref) -> None:
        per_head = self.problem.rows
        for head in range(self.problem.kv_heads):
            packed[head * per_head : (head + 1) * per_head] = rows[head, :per_head]

    def scratch(self, layer: LayerPages) -> Scratch:
        """The memory that the kernel asks for."""
        p, s = self.problem, self.sizes
        rows = max(kind.rows for kind in self.kinds)

        def vmem(*shape: int, dtype: Any = jnp.float32) -> Any:
            return pltpu.VMEM(shape, dtype)

        def written(pool: jax.Array) -> Any:
            tokens = 1 if pool.shape[2] == 1 else s.group
            return vmem(s.writes, p.kv_heads, tokens, pool.shape[3], dtype=pool.dtype)

        def fetched(pool: jax.Array) -> Any:
            inner = (s.pages, 1) if pool.shape[2] == 1 else (s.pages * p.page_size,)
            return vmem(DEPTH, p.kv_heads, *inner, pool.shape[3], dtype=pool.dtype)

        return Scratch(
            written=jax.tree.map(written, layer),
            fetched=jax.tree.map(fetched, layer),
            queries=vmem(p.kv_heads, s.decode_rows, p.key_lanes),
            highest=vmem(p.kv_heads, rows, 1),
            total=vmem(p.kv_heads, rows, 1),
            output=vmem(p.kv_heads, rows, p.value_lanes),
            cursor=pltpu.SMEM((4,), jnp.int32),
            reads=pltpu.SemaphoreType.DMA((s.writes,)),
            writes=pltpu.SemaphoreType.DMA((s.writes,)),
            arrived=pltpu.SemaphoreType.DMA((DEPTH,)),
        )


def attend(
    batch: PagedBatch,
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    k: jax.Array,  # f32[T, K, Q]
    v: jax.Array | None,  # f32[T, K, W]
    *,
    scale: float,
    softcap: float | None,
    window: int | None,
    interpret: Any = False,
) -> tuple[jax.Array, LayerPages]:
    """As `PagedBatch.attend`, for pages of `tpu_shapes`. Raises ValueError: it does not fit."""
    program = program_of(batch, layer, q.shape[1], softcap, window)
    sizes, page_size = program.sizes, program.problem.page_size
    units = units_of(batch, sizes.queries, page_size, window)
    new = _padded(new_tokens(layer, k, v), sizes.group, lanes(page_size))
    queries = _queries(program, q * scale)
    results, layer = _call(
        program, units, runs_of(batch, sizes.group), new, queries, layer, interpret
    )
    first = q.shape[2] if v is not None and layer.values is None else 0
    width = q.shape[2] if v is None else v.shape[2]
    rows = [
        _results(program, kind, each)[..., first : first + width]
        for kind, each in zip(program.kinds, results, strict=True)
    ]
    return jnp.concatenate(rows), layer


def program_of(
    batch: PagedBatch, layer: LayerPages, heads: int, softcap: float | None, window: int | None
) -> Program:
    """The program for these shapes. Raises ValueError."""
    _, kv_heads, page_size, key_lanes = layer.keys.shape
    decodes, (blocks, block) = batch.decode_tables.shape[0], batch.block_limits.shape
    values = layer.keys if layer.values is None else layer.values
    problem = Problem(
        decodes=decodes,
        blocks=blocks,
        block=block,
        kv_heads=kv_heads,
        rows=heads // kv_heads,
        key_lanes=key_lanes,
        value_lanes=values.shape[3],
        arrays=1 if layer.values is None else 2,
        page_size=page_size,
        table=batch.decode_tables.shape[1],
        dtype=layer.keys.dtype,
        scales=len(jax.tree.leaves((layer.key_scales, layer.value_scales))),
    )
    sizes = sizes_of(problem)
    return Program(
        problem, sizes, _kinds(problem, sizes), Scoring(softcap, window, problem.products)
    )


def _kinds(problem: Problem, sizes: Sizes) -> tuple[Kind, ...]:
    parts = problem.blocks * (problem.block // sizes.queries) if problem.blocks else 0
    decodes = Kind(
        first=0,
        units=problem.decodes,
        at_once=sizes.decode_units,
        first_step=0,
        rows=sizes.decode_rows,
        per_query=sizes.decode_rows,
        packed=sizes.decode_rows != problem.rows,
    )
    prompts = Kind(
        first=problem.decodes,
        units=parts,
        at_once=1,
        first_step=decodes.steps,
        rows=sizes.block_rows,
        per_query=problem.rows,
        packed=False,
    )
    return tuple(kind for kind in (decodes, prompts) if kind.units)


def _queries(program: Program, q: jax.Array) -> list[jax.Array]:
    """Of each kind, as its units lie: [units, H, lanes] or [units, K, rows, lanes]."""
    p, s = program.problem, program.sizes
    q = jnp.pad(q, ((0, 0), (0, 0), (0, p.key_lanes - q.shape[2])))
    found = []
    for kind in program.kinds:
        if kind.first < p.decodes:
            mine = q[: p.decodes]
            found.append(mine if kind.packed else mine.reshape(-1, p.kv_heads, p.rows, p.key_lanes))
            continue
        mine = q[p.decodes :].reshape(-1, s.queries, p.kv_heads, p.rows, p.key_lanes)
        mine = mine.swapaxes(1, 2).reshape(-1, p.kv_heads, s.queries * p.rows, p.key_lanes)
        more = kind.rows - mine.shape[2]
        found.append(jnp.pad(mine, ((0, 0), (0, 0), (0, more), (0, 0))).astype(p.products))
    return found


def _results(program: Program, kind: Kind, found: jax.Array) -> jax.Array:
    """f32[tokens, H, lanes]."""
    p, s = program.problem, program.sizes
    if kind.first < p.decodes:
        return found.reshape(-1, p.kv_heads * p.rows, p.value_lanes)
    found = found[:, :, : s.queries * p.rows]
    found = found.reshape(-1, p.kv_heads, s.queries, p.rows, p.value_lanes).swapaxes(1, 2)
    return found.reshape(-1, p.kv_heads * p.rows, p.value_lanes)


def _padded(new: LayerPages, group: int, width: int) -> LayerPages:
    """Room on both sides for a whole group to be read at any token."""

    def pad(array: jax.Array, axis: int, before: int, after: int) -> jax.Array:
        wide = [(0, 0)] * array.ndim
        wide[axis] = (before, after)
        return jnp.pad(array, wide)

    def scales(array: jax.Array) -> jax.Array:
        count = array.shape[2]
        return pad(array, 2, width, lanes(count + 2 * width + LANES) - count - width)

    return LayerPages(
        *(jax.tree.map(lambda rows: pad(rows, 2, group, group), each) for each in new[:2]),
        *(jax.tree.map(scales, each) for each in new[2:]),
    )


def _call(
    program: Program,
    units: Units,
    runs: Runs,
    new: LayerPages,
    queries: list[jax.Array],
    layer: LayerPages,
    interpret: Any,
) -> tuple[list[jax.Array], LayerPages]:
    scratch = program.scratch(layer)
    results = [_result_shape(program.problem, kind) for kind in program.kinds]
    pools = jax.tree.map(lambda pool: jax.ShapeDtypeStruct(pool.shape, pool.dtype), layer)
    anywhere = jax.tree.map(lambda _: pl.BlockSpec(memory_space=pl.ANY), layer)
    specs = [kind.spec(each.shape) for kind, each in zip(program.kinds, queries, strict=True)]
    scalars, inputs = jax.tree.leaves((units, runs)), (new, *queries, layer)
    before = len(scalars) + len(jax.tree.leaves((new, queries)))
    after = len(results)
    aliases = {before + index: after + index for index in range(len(jax.tree.leaves(layer)))}
    whole = jax.tree.map(lambda _: pl.BlockSpec(memory_space=pltpu.VMEM), new)
    out_specs = [kind.spec(each.shape) for kind, each in zip(program.kinds, results, strict=True)]
    held = _vmem_bytes(scratch, new, [*queries, *results], [*specs, *out_specs])
    structure = jax.tree.structure
    trees = [structure(each) for each in (units, runs, new, *queries, layer)]
    trees += [structure(each) for each in (*results, pools)]
    trees += [structure(each) for each in scratch]

    def kernel(*refs: Any) -> None:
        flat: Iterator[Any] = iter(refs)
        program.kernel(
            *(jax.tree.unflatten(t, [next(flat) for _ in range(t.num_leaves)]) for t in trees)
        )

    out = pl.pallas_call(
        kernel,
        out_shape=(*results, *jax.tree.leaves(pools)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(sum(kind.steps for kind in program.kinds),),
            in_specs=jax.tree.leaves((whole, *specs, anywhere)),
            out_specs=(*out_specs, *jax.tree.leaves(anywhere)),
            scratch_shapes=jax.tree.leaves(scratch),
        ),
        input_output_aliases=aliases,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=held + VMEM_SPARE
        ),
        interpret=interpret,
        name="paged_attention",
    )(*scalars, *jax.tree.leaves(inputs))
    return list(out[:after]), jax.tree.unflatten(structure(layer), out[after:])


def _result_shape(problem: Problem, kind: Kind) -> jax.ShapeDtypeStruct:
    heads = (problem.kv_heads * problem.rows,) if kind.packed else (problem.kv_heads, kind.rows)
    return jax.ShapeDtypeStruct((kind.units, *heads, problem.value_lanes), jnp.float32)


def _vmem_bytes(scratch: Scratch, new: LayerPages, blocks: Sequence[Any], specs: Any) -> int:
    """Raises ValueError: more than a chip has."""
    held = sum(_bytes(each.shape, each.dtype) for each in jax.tree.leaves(scratch[:6]))
    held += sum(_bytes(each.shape, each.dtype) for each in jax.tree.leaves(new))
    for spec, array in zip(specs, blocks, strict=True):
        held += 2 * _bytes(spec.block_shape, array.dtype)
    if held > VMEM_BYTES - VMEM_SPARE:
        raise ValueError(
            f"attention needs {held >> 20} MiB of a TPU's {VMEM_BYTES >> 20}: give the model more "
            "devices to divide its heads over, or steps fewer tokens"
        )
    return held


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    """In whole registers."""
    *outer, rows, width = shape
    return math.prod(outer) * -(-rows // 8) * 8 * lanes(width) * jnp.dtype(dtype).itemsize
