"""Grouped product with quantised weights on a TPU: each group of rows times its own matrix.

Each tile of the weight is copied to VMEM as stored (int4 two to a byte), widened there and
multiplied on the MXU; nothing wide is ever in HBM. Weights that no row uses are not read. A single
matrix for all rows is one group.

XLA:TPU does the same for int8 and float8 with one scale per row, so this is for the rest: XLA would
materialise the wide form of weights with a scale per block, and of int4 held in bytes. jax's own
grouped product (megablox) takes no quantised weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.small_numbers import Form, Packed, form_of, halves, scale_of, widened


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
    """sizes: i32[E], rows of each group; they fill the first of `tiles` tiles of `rows` rows."""
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


_LANES = 128
_ROWS = 16  # rows of a bfloat16 tile in VMEM
_WEIGHT_BYTES, _X_BYTES = 2 << 20, 10 << 20  # per tile
_VMEM_BYTES = 60 << 20  # v7x has 64 MiB, the others more


class MatmulTiles(NamedTuple):
    rows: int
    outputs: int


def grouped_matmul(
    x: jax.Array,  # [N, in], in the product dtype; rows of a group are adjacent
    packed: Packed,  # of E matrices [out, in]
    sizes: jax.Array,  # i32[E]: rows of each group; the remaining rows have no group
    *,
    interpret: bool = False,
) -> jax.Array:
    """f32[N, out]: each row times its group's matrix, transposed; zeros for rows without one."""
    made, visits = _run(x, [packed], sizes, _itself, jnp.float32, interpret)
    mine = jnp.arange(len(x)) < visits.ends[-1]
    return jnp.where(mine[:, None], made, 0.0)


def gated_grouped_matmul(
    x: jax.Array,  # as for `grouped_matmul`
    gate: Packed,  # of E matrices [out, in]
    up: Packed,  # likewise, of the same form
    sizes: jax.Array,
    finish: Callable[[jax.Array, jax.Array], jax.Array],
    dtype: Any,  # of the result
    *,
    biases: Sequence[jax.Array] = (),  # f32[E, out] of both products, or none
    interpret: bool = False,
) -> jax.Array:
    """[N, out]: what `finish` makes of the products with gate and up, rounded once, from f32.

    Neither product is ever in HBM. Rows without a group are undefined.
    """
    return _run(x, [gate, up], sizes, finish, dtype, interpret, biases)[0]


def matmul(x: jax.Array, packed: Packed, *, interpret: bool = False) -> jax.Array:
    """f32[N, out]: all rows times one transposed matrix; `packed` is [out, in], without E."""
    one = jax.tree.map(lambda array: array[None], packed)
    return _run(x, [one], jnp.full((1,), len(x)), _itself, jnp.float32, interpret)[0]


Finish = Callable[..., jax.Array]  # f32 products of a tile, one per weight, to its results


def _itself(made: jax.Array) -> jax.Array:
    return made


def _run(
    x: jax.Array,
    weights: Sequence[Packed],  # of one form
    sizes: jax.Array,
    finish: Finish,
    dtype: Any,
    interpret: bool,
    biases: Sequence[jax.Array] = (),
) -> tuple[jax.Array, Visits]:
    """Unvisited tiles hold undefined rows."""
    packed = weights[0]
    form = form_of(packed)
    assert form is not None, "check `fits` first"
    tiles = _tiles_of(x, packed, form)
    parts = _padded(halves(x, form), tiles.rows)
    sums = None if packed.offsets is None else _padded(form.sums(x), tiles.rows)
    visits = visits_of(sizes.astype(jnp.int32), parts.shape[1] // tiles.rows, tiles.rows)
    lying = [form.lying(each) for each in weights]
    made = _call(parts, sums, lying, form, visits, tiles, finish, dtype, interpret, biases)
    return made[: len(x)], visits


def _tiles_of(x: jax.Array, packed: Packed, form: Form) -> MatmulTiles:
    rows, inputs = x.shape
    experts = packed.values.shape[0]
    most = max(_ROWS, _X_BYTES // (inputs * x.dtype.itemsize) // _ROWS * _ROWS)
    # Twice the rows of an average group: the cost of a visit grows with the height of its tile.
    wanted = rows if experts == 1 else pl.next_power_of_2(max(1, 2 * rows // experts))
    height = min(-(-rows // _ROWS) * _ROWS, max(_ROWS, -(-wanted // _ROWS) * _ROWS), most, 512)
    return MatmulTiles(
        height, _outputs_of(form.outputs, form.columns * packed.values.dtype.itemsize)
    )


def _outputs_of(outputs: int, row_bytes: int) -> int:
    """Whole lanes: the most that fit and divide evenly."""
    if outputs < _LANES:
        return outputs
    most = max(1, min(4, _WEIGHT_BYTES // row_bytes // _LANES, outputs // _LANES))
    counts = range(most, 0, -1)
    return _LANES * next((count for count in counts if outputs % (count * _LANES) == 0), most)


def _padded(x: jax.Array, rows: int) -> jax.Array:
    """[..., N, n] with N padded to a multiple of rows."""
    rest = -x.shape[-2] % rows
    return jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, rest), (0, 0))) if rest else x


def _call(
    parts: jax.Array,  # [halves, N, columns]
    sums: jax.Array | None,  # f32[N, blocks]
    weights: Sequence[Packed],  # lying
    form: Form,
    visits: Visits,
    tiles: MatmulTiles,
    finish: Finish,
    dtype: Any,
    interpret: bool,
    biases: Sequence[jax.Array],
) -> jax.Array:
    rows, outputs = tiles

    def of_weight(shape: tuple[int, ...], turned: bool) -> pl.BlockSpec:
        block = (None, shape[1], outputs) if turned else (None, outputs, shape[2])
        return pl.BlockSpec(
            block, lambda o, v, on: (on.expert[v], 0, o) if turned else (on.expert[v], o, 0)
        )

    inputs: list[Any] = [parts]
    specs = [
        pl.BlockSpec((parts.shape[0], rows, parts.shape[2]), lambda o, v, on: (0, on.tile[v], 0))
    ]
    for lying in weights:
        if lying.values.shape[0] > 1 and not interpret:
            # Otherwise XLA may copy all of them to VMEM beforehand, used or not.
            lying = jax.tree.map(_kept_in_hbm, lying)
        turned = (form.turned, form.turned_scales, form.turned_scales)
        for array, is_turned in zip(lying.arrays, turned, strict=True):
            if array is not None:
                inputs.append(array)
                specs.append(of_weight(array.shape, is_turned))
    if sums is not None:
        inputs.append(sums)
        specs.append(pl.BlockSpec((rows, sums.shape[1]), lambda o, v, on: (on.tile[v], 0)))
    for bias in biases:
        inputs.append(bias[:, None])
        specs.append(pl.BlockSpec((None, 1, outputs), lambda o, v, on: (on.expert[v], 0, o)))
    scratch = [pltpu.VMEM((outputs, form.spread_lanes), jnp.float32)] if form.spread_lanes else []
    result = jax.ShapeDtypeStruct((parts.shape[1], form.outputs), dtype)
    return pl.pallas_call(
        functools.partial(_body, form=form, count=len(weights), biased=len(biases), finish=finish),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(form.outputs, outputs), visits.count),
            in_specs=specs,
            out_specs=pl.BlockSpec((rows, outputs), lambda o, v, on: (on.tile[v], o)),
            scratch_shapes=scratch,
        ),
        out_shape=result,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=_VMEM_BYTES
        ),
        cost_estimate=_cost(parts, weights, form, result),
        interpret=interpret,
    )(visits, *inputs)


def _kept_in_hbm(array: jax.Array) -> jax.Array:
    return pltpu.with_memory_space_constraint(array, pltpu.HBM)


def _cost(
    parts: jax.Array, weights: Sequence[Packed], form: Form, result: jax.ShapeDtypeStruct
) -> pl.CostEstimate:
    """Upper bound: as if every expert that could be used were used."""
    rows, experts = parts.shape[1], weights[0].values.shape[0]
    used = min(experts, rows)
    stored = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(weights))
    moved = parts.size * parts.dtype.itemsize + result.size * result.dtype.itemsize
    return pl.CostEstimate(
        flops=2 * rows * form.outputs * form.inputs * len(weights),
        bytes_accessed=stored * used // experts + moved,
        transcendentals=0,
    )


def _body(
    on: Visits, x: Any, *refs: Any, form: Form, count: int, biased: int, finish: Finish
) -> None:
    """One tile of rows times one tile of one group's matrix, or of its matrices."""
    rest = iter(refs)
    weights = [
        Packed(next(rest), next(rest) if form.scaled else None, next(rest) if form.offset else None)
        for _ in range(count)
    ]
    sums = next(rest) if form.offset else None
    biases = [next(rest) for _ in range(biased)]
    out, spread = next(rest), next(rest, None)
    products = [_products(x, each, sums, spread, out.shape, form) for each in weights]
    for index, bias in enumerate(biases):
        products[index] += bias[...]
    made = finish(*products)
    visit, rows = pl.program_id(1), out.shape[0]
    row = on.tile[visit] * rows + jax.lax.broadcasted_iota(jnp.int32, out.shape, 0)
    expert = on.expert[visit]
    mine = (row >= on.starts[expert]) & (row < on.ends[expert])
    # A tile of rows shared by several groups is visited by one after the other.
    fresh = (visit == 0) | (on.tile[visit] != on.tile[jnp.maximum(visit - 1, 0)])
    others = jnp.where(fresh, 0.0, out[...].astype(jnp.float32))
    out[...] = jnp.where(mine, made, others).astype(out.dtype)


def _products(
    x: Any, weight: Packed, sums: Any, spread: Any, shape: tuple[int, ...], form: Form
) -> jax.Array:
    """f32[rows, outputs] with one matrix; its arrays, `sums` and the scratch `spread` are Refs."""
    if spread is not None:
        form.spread(weight.scales, spread)
    scales = weight.scales if spread is None else spread
    made = _product(x, weight.values, scales if form.blocks > 1 else None, shape, form)
    if weight.scales is not None and form.blocks == 1:
        made = made * weight.scales[...]
    if weight.offsets is not None:
        made = made + _of_offsets(sums, weight.offsets, form)
    return made


def _product(x: Any, values: Any, scales: Any, shape: tuple[int, ...], form: Form) -> jax.Array:
    """f32[rows, outputs], a chunk of columns at a time, so that little is wide at once."""

    def add(chunk: Any, size: int, made: jax.Array) -> jax.Array:
        at = pl.ds(chunk, size)
        stored = values[at, :] if form.turned else values[:, at]
        scale = None if scales is None else scale_of(scales, chunk, size, form)
        for half, numbers in enumerate(widened(stored, scale, form, x.dtype)):
            axes = (((1,), (0 if form.turned else 1,)), ((), ()))
            made += jax.lax.dot_general(
                x[half, :, at], numbers, axes, preferred_element_type=jnp.float32
            )
        return made

    made, size = jnp.zeros(shape, jnp.float32), form.chunk
    whole, rest = divmod(form.columns, size)
    if form.turned:  # sublanes can only be sliced at static offsets
        for chunk in range(whole):
            made = add(chunk * size, size, made)
    else:
        made = jax.lax.fori_loop(
            0, whole, lambda i, made: add(pl.multiple_of(i * size, size), size, made), made
        )
    return add(whole * size, rest, made) if rest else made


def _of_offsets(sums: Any, offsets: Any, form: Form) -> jax.Array:
    """Contribution of the offsets: each block's offset times the sum of its inputs."""
    if form.blocks == 1:
        return sums[...] * offsets[...]
    axes = (((1,), (0 if form.turned_scales else 1,)), ((), ()))
    return jax.lax.dot_general(
        sums[...], offsets[...], axes, precision="highest", preferred_element_type=jnp.float32
    )
