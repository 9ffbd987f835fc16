"""Attention to chosen tokens on one TPU device: scores, the choice among them, and attention.

A row of a page holds the latent vector and, in lanes of its own where its padding leaves room, the
key for choosing: scores then read only those, and attention only the others.

A score is the weighted sum of relu(query · key) over heads. Of each page only the lanes with the
key for choosing are fetched. Products are exact to f32: of small pages by queries that are cut into
three bfloat16 numbers each, which costs the matrix unit no more loads of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.chosen import EVERY, Choosing, Chosen
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu import program
from model_server.kernels.tpu.kernel import fetched_ring, table_of, written_ring
from model_server.kernels.tpu.pages import LANES, SUBLANES, lanes, new_tokens
from model_server.kernels.tpu.program import padded, vmem_bytes
from model_server.kernels.tpu.queries import UnitKind, kinds_of
from model_server.kernels.tpu.reading import Fetcher
from model_server.kernels.tpu.sizes import DEPTH, VMEM_SPARE, AttentionShapes, Sizes, sizes_of
from model_server.kernels.tpu.softmax import along
from model_server.kernels.tpu.units import Runs, Units, runs_of, units_of
from model_server.kernels.tpu.writing import PageWriter

Ref = Any  # Pallas reference: device memory inside a kernel
_PLACES = 2  # of scores on their way to memory
_MADE = 4  # cursor field behind those of the fetcher: blocks of scores of this kind


def attend_to_chosen(
    batch: PagedBatch,
    layer: LayerPages,
    q: jax.Array,  # f32[T, H, Q]
    k: jax.Array,  # f32[T, 1, Q + I]
    choosing: Choosing | Chosen,
    *,
    most: int,
    scale: float,
    interpret: Any = False,
) -> tuple[jax.Array, LayerPages, Chosen]:
    """As `chosen.attend_to_chosen`. Returns f32[T, H, Q]. Raises KernelRefusal."""
    _, _, page_size, width = layer.keys.shape
    mixed, index = q.shape[2], k.shape[2] - q.shape[2]
    first = max(mixed, width - lanes(index))
    gap = ((0, 0), (0, 0), (0, first - mixed))
    k = jnp.concatenate([jnp.pad(k[..., :mixed], gap), k[..., mixed:]], axis=-1)
    chosen, written = choosing if isinstance(choosing, Chosen) else EVERY, False
    if isinstance(choosing, Choosing) and batch.decode_tables.shape[1] * page_size > most:
        found, layer = _score(batch, layer, k, choosing, first=first, interpret=interpret)
        chosen, written = _chosen(batch, found, most), True
    attended, layer = program.attend(
        *(batch, layer, q, k, None),
        scale=scale,
        softcap=None,
        window=None,
        interpret=interpret,
        chosen=chosen,
        reads=min(lanes(mixed), width),
        writes=not written,
    )
    return attended, layer, chosen


def _chosen(batch: PagedBatch, found: list[jax.Array], most: int) -> Chosen:
    of_rows = [of for of in (batch.decode_limits, batch.block_limits) if of.size]
    made = iter([highest(*each, most) for each in zip(found, of_rows, strict=True)])
    decodes = next(made) if batch.decode_limits.size else None
    return Chosen(decodes, next(made) if batch.block_limits.size else None)


def highest(found: jax.Array, limits: jax.Array, most: int) -> jax.Array:
    """Mark the highest scores: bool[N, C, S]; of equal ones the earliest, as `lax.top_k` does.

    A mark counts from the least score that is chosen: scattering indices takes a TPU far longer.
    """
    at = jax.lax.broadcasted_iota(jnp.int32, found.shape, 2)
    found = jnp.where(at < limits[..., None], found, -jnp.inf)
    order = jax.lax.bitcast_convert_type(found, jnp.int32)  # integers in the order of the numbers
    order = jnp.where(order < 0, order ^ jnp.iinfo(jnp.int32).max, order)
    least = jax.lax.top_k(order, most)[0][..., -1:]
    above, equal = order > least, order == least
    left = most - above.sum(-1, keepdims=True, dtype=jnp.int32)
    return above | (equal & (jnp.cumsum(equal, axis=-1, dtype=jnp.int32) <= left))


class _ScoreScratch(NamedTuple):
    written: LayerPages
    fetched: LayerPages
    made: list[Any]  # per kind f32[_PLACES, queries, tokens]
    cursor: Any
    reads: Any
    writes: Any
    arrived: Any
    left: Any


@dataclass(frozen=True, slots=True)
class _Given:
    """Queries and weights of one kind of unit: arrays, or Refs to those of a grid step."""

    numbers: Any  # [units, queries, parts * heads, lanes]
    weights: Any  # f32[units, queries, heads, 1]


jax.tree_util.register_dataclass(_Given)


@dataclass(frozen=True, slots=True)
class _ScoreProgram:
    problem: AttentionShapes  # rows: heads that choose, padded
    sizes: Sizes
    kinds: tuple[UnitKind, ...]
    first_lane: int  # of the lanes that are read

    def kernel(self, units: Units, runs: Runs, new: LayerPages, *rest: Any) -> None:
        """Run one grid step. rest: Refs given per kind, pools, results per kind, pools, scratch."""
        refs = iter(rest)
        given = [next(refs) for _ in self.kinds]
        next(refs)  # input pools; the outputs alias them
        results = [next(refs) for _ in self.kinds]
        pools, scratch = next(refs), _ScoreScratch(*refs)
        fetcher = self._fetcher(units, pools, scratch)
        step = pl.program_id(0)

        @pl.when(step == 0)
        def _() -> None:
            self._writer(runs, new, pools, scratch).write_all()
            fetcher.start()

        for kind, *refs in zip(self.kinds, given, results, scratch.made, strict=True):

            @pl.when((step >= kind.first_step) & (step < kind.first_step + kind.steps))
            def _(kind: UnitKind = kind, refs: list[Ref] = refs) -> None:
                self._step(kind, step - kind.first_step, fetcher, scratch, *refs)

    def _writer(
        self, runs: Runs, new: LayerPages, pools: LayerPages, scratch: _ScoreScratch
    ) -> PageWriter:
        ring, marks = scratch.written, (scratch.reads, scratch.writes)
        return PageWriter(runs, new, pools, ring, *marks, self.sizes.group, self.sizes.writes)

    def _fetcher(self, units: Units, pools: LayerPages, scratch: _ScoreScratch) -> Fetcher:
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
            first_lane=self.first_lane,
        )

    def _step(
        self,
        kind: UnitKind,
        step: jax.Array,
        fetcher: Fetcher,
        scratch: _ScoreScratch,
        given: _Given,
        results: Ref,
        made: Ref,
    ) -> None:
        cursor, left = scratch.cursor, scratch.left

        @pl.when(step == 0)
        def _() -> None:
            cursor[_MADE] = 0

        def one_unit(index: jax.Array, _: None) -> None:
            unit = kind.first + step * kind.at_once + index

            def one_block(block: jax.Array, _: None) -> None:
                place, out = fetcher.next_block(unit, block), cursor[_MADE] % _PLACES
                leaving = pltpu.make_async_copy(
                    made.at[out], results.at[unit - kind.first, block], left.at[out]
                )
                pl.when(cursor[_MADE] >= _PLACES)(leaving.wait)
                here = jax.tree.map(lambda ring: ring.at[place], fetcher.ring)
                self._score(given, index, here, made.at[out])
                leaving.start()
                cursor[_MADE] += 1

            blocks = (fetcher.units.end_pages[unit] + self.sizes.pages - 1) // self.sizes.pages
            jax.lax.fori_loop(0, blocks, one_block, None)

        jax.lax.fori_loop(0, kind.at_once, one_unit, None)

        @pl.when(step == kind.steps - 1)
        def _() -> None:
            for place in range(_PLACES):
                leaving = pltpu.make_async_copy(made.at[place], results.at[0, 0], left.at[place])
                pl.when(cursor[_MADE] > place)(leaving.wait)

    def _score(self, given: _Given, index: jax.Array, block: LayerPages, made: Ref) -> None:
        """Score a block for the queries of a unit, one query at a time."""
        heads, products = self.problem.rows, self.problem.products
        exact = products == jnp.float32

        def one(query: jax.Array, _: None) -> None:
            keys = block.keys[0].astype(products)
            found = jax.lax.dot_general(
                given.numbers[index, query],
                keys,
                (((1,), (1,)), ((), ())),
                precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
                preferred_element_type=jnp.float32,
            )
            found = sum(found[at : at + heads] for at in range(0, found.shape[0], heads))
            if block.key_scales is not None:
                found = found * along(block.key_scales[...], keys.shape[0])[0]
            found = given.weights[index, query] * jnp.maximum(found, 0.0)
            made[pl.ds(query, 1), :] = found.sum(0, keepdims=True)

        jax.lax.fori_loop(0, made.shape[0], one, None)

    def scratch(self, layer: LayerPages) -> _ScoreScratch:
        p, s = self.problem, self.sizes
        tokens = s.pages * p.page_size
        return _ScoreScratch(
            written=written_ring(p, s, layer),
            fetched=fetched_ring(p, s, layer),
            made=[
                pltpu.VMEM((_PLACES, self.queries(kind), tokens), jnp.float32)
                for kind in self.kinds
            ],
            cursor=pltpu.SMEM((5,), jnp.int32),
            reads=pltpu.SemaphoreType.DMA((s.writes,)),
            writes=pltpu.SemaphoreType.DMA((s.writes,)),
            arrived=pltpu.SemaphoreType.DMA((DEPTH,)),
            left=pltpu.SemaphoreType.DMA((_PLACES,)),
        )

    def queries(self, kind: UnitKind) -> int:
        """Queries of a unit."""
        return 1 if kind.first < self.problem.decodes else self.sizes.queries

    def results(self, kind: UnitKind) -> jax.ShapeDtypeStruct:
        tokens = self.sizes.pages * self.problem.page_size
        blocks = -(-self.problem.table // self.sizes.pages)
        return jax.ShapeDtypeStruct((kind.units, blocks, self.queries(kind), tokens), jnp.float32)

    def given(self, kind: UnitKind, choosing: Choosing) -> _Given:
        """Queries and weights of a kind; first: their number within the lanes that are read."""
        p, decodes = self.problem, self.problem.decodes
        rows = slice(0, decodes) if kind.first < decodes else slice(decodes, None)
        more = p.rows - choosing.weights.shape[1]
        weights = jnp.pad(choosing.weights[rows], ((0, 0), (0, more)))
        numbers = jnp.pad(choosing.queries[rows], ((0, 0), (0, more), (0, 0)))
        parts = [numbers] if p.products == jnp.float32 else _parts(numbers)
        numbers = jnp.concatenate(parts, axis=1).astype(p.products)
        shape = (kind.units, self.queries(kind))
        return _Given(numbers.reshape(*shape, -1, p.key_lanes), weights.reshape(*shape, p.rows, 1))


def _score(
    batch: PagedBatch,
    layer: LayerPages,
    k: jax.Array,  # f32[T, 1, lanes of a row]
    choosing: Choosing,
    *,
    first: int,  # number in a row at which keys for choosing begin
    interpret: Any,
) -> tuple[list[jax.Array], LayerPages]:
    """Write the new tokens. Return scores f32[D, 1, S] and f32[N, C, S], those that there are.

    Scores of tokens that a query does not see are arbitrary. Raises KernelRefusal.
    """
    begin = first // LANES * LANES
    before, width = first - begin, choosing.queries.shape[2]
    after = lanes(before + width) - before - width
    wide = jnp.pad(choosing.queries, ((0, 0), (0, 0), (before, after)))
    program = _program_of(batch, layer, wide.shape, begin)
    sizes, page_size = program.sizes, program.problem.page_size
    units, runs = units_of(batch, sizes.queries, page_size, None), runs_of(batch, sizes.group)
    new = padded(new_tokens(layer, k, None), sizes.group, lanes(page_size))
    given = [program.given(kind, choosing._replace(queries=wide)) for kind in program.kinds]
    found, layer = _call(program, units, runs, new, given, layer, interpret)
    tokens = batch.decode_tables.shape[1] * page_size
    return [
        _rows(each, tokens).reshape(*limits.shape, tokens)
        for each, limits in zip(
            found, [of for of in (batch.decode_limits, batch.block_limits) if of.size], strict=True
        )
    ], layer


def _program_of(
    batch: PagedBatch, layer: LayerPages, shape: tuple[int, ...], first_lane: int
) -> _ScoreProgram:
    problem = AttentionShapes(
        decodes=batch.decode_tables.shape[0],
        blocks=batch.block_limits.shape[0],
        block=batch.block_limits.shape[1],
        kv_heads=1,
        rows=-(-shape[1] // SUBLANES) * SUBLANES,
        key_lanes=shape[2],
        value_lanes=shape[2],
        arrays=1,
        page_size=layer.keys.shape[2],
        table=batch.decode_tables.shape[1],
        dtype=layer.keys.dtype,
        scales=len(jax.tree.leaves(layer.key_scales)),
    )
    sizes = sizes_of(problem)
    return _ScoreProgram(problem, sizes, kinds_of(problem, sizes), first_lane)


def _parts(numbers: jax.Array) -> list[jax.Array]:
    """Cut f32 into three numbers of 8 bits each, which add up to it."""
    parts: list[jax.Array] = []
    for _ in range(3):
        parts.append(jax.lax.reduce_precision(numbers, exponent_bits=8, mantissa_bits=7))
        numbers = numbers - parts[-1]
    return parts


def _rows(found: jax.Array, tokens: int) -> jax.Array:
    """Turn [units, blocks, queries, tokens of a block] into a row per query."""
    units, _, queries, _ = found.shape
    return found.swapaxes(1, 2).reshape(units * queries, -1)[:, :tokens]


def _call(
    program: _ScoreProgram,
    units: Units,
    runs: Runs,
    new: LayerPages,
    given: list[_Given],
    layer: LayerPages,
    interpret: Any,
) -> tuple[list[jax.Array], LayerPages]:
    scratch, leaves, structure = program.scratch(layer), jax.tree.leaves, jax.tree.structure
    results = [program.results(kind) for kind in program.kinds]
    pools = jax.tree.map(lambda pool: pltpu.HBM(pool.shape, pool.dtype), layer)
    there, here = (pl.BlockSpec(memory_space=memory) for memory in (pltpu.HBM, pltpu.VMEM))
    specs = [
        jax.tree.map(lambda array, kind=kind: kind.spec(array.shape), of)
        for kind, of in zip(program.kinds, given, strict=True)
    ]
    scalars, before = leaves((units, runs)), len(leaves((units, runs, new, given)))
    count = len(leaves(layer))
    held = vmem_bytes(scratch[:3], new, leaves(given), leaves(specs))
    trees = [structure(each) for each in (units, runs, new, *given, layer)]
    trees += [structure(each) for each in (*results, pools, *scratch)]

    def kernel(*refs: Any) -> None:
        flat: Iterator[Any] = iter(refs)
        program.kernel(
            *(jax.tree.unflatten(t, [next(flat) for _ in range(t.num_leaves)]) for t in trees)
        )

    out = pl.pallas_call(
        kernel,
        out_shape=(*results, *leaves(pools)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(sum(kind.steps for kind in program.kinds),),
            in_specs=[*[here] * len(leaves(new)), *leaves(specs), *[there] * count],
            out_specs=[there] * (len(results) + count),
            scratch_shapes=leaves(scratch),
        ),
        input_output_aliases={before + at: len(results) + at for at in range(count)},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",), vmem_limit_bytes=held + VMEM_SPARE
        ),
        interpret=interpret,
        name="token_scores",
    )(*scalars, *leaves((new, given, layer)))
    return list(out[: len(results)]), jax.tree.unflatten(structure(layer), out[len(results) :])
