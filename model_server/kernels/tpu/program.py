"""The TPU kernel call on one device: writes a layer's new tokens and attends to its pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from model_server.kernels.chosen import EVERY, Chosen
from model_server.kernels.paged import KernelRefusal, PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.kernel import TpuProgram
from model_server.kernels.tpu.pages import LANES, lanes, new_tokens
from model_server.kernels.tpu.queries import kinds_of, queries_of, result_shape, rows_of, sinks_of
from model_server.kernels.tpu.reading import masks_of
from model_server.kernels.tpu.sizes import VMEM_BYTES, VMEM_SPARE, AttentionShapes, sizes_of
from model_server.kernels.tpu.softmax import Scoring
from model_server.kernels.tpu.units import Runs, Units, runs_of, units_of


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
    sinks: jax.Array | None = None,  # f32[H]
    chunk: int | None = None,
    interpret: Any = False,
    chosen: Chosen = EVERY,
    reads: int | None = None,  # lanes of rows of keys that double as values; None: all
    writes: bool = True,  # False: the new tokens are in their pages
) -> tuple[jax.Array, LayerPages]:
    """As `PagedBatch.attend`, for pages of `tpu_shapes`. Raises KernelRefusal."""
    program = program_of(batch, layer, q.shape[1], softcap, window, chunk, reads)
    sizes, page_size = program.sizes, program.problem.page_size
    units = units_of(batch, sizes.queries, page_size, window, chunk)
    runs = runs_of(batch, sizes.group)
    if not writes:
        k, v = jax.tree.map(lambda each: each[:1], (k, v))
        runs = runs._replace(total=jnp.zeros_like(runs.total))
    new = padded(new_tokens(layer, k, v), sizes.group, lanes(page_size))
    queries = queries_of(program.problem, sizes, program.kinds, q * scale)
    of_kinds = sinks_of(program.problem, sizes, program.kinds, sinks)
    marks = masks_of(program.problem, sizes, program.kinds, chosen)
    results, layer = _call(program, units, runs, new, of_kinds, marks, queries, layer, interpret)
    first = q.shape[2] if v is not None and layer.values is None else 0
    width = q.shape[2] if v is None else v.shape[2]
    rows = [
        rows_of(program.problem, sizes, kind, each)[..., first : first + width]
        for kind, each in zip(program.kinds, results, strict=True)
    ]
    return jnp.concatenate(rows), layer


def program_of(
    batch: PagedBatch,
    layer: LayerPages,
    heads: int,
    softcap: float | None,
    window: int | None,
    chunk: int | None = None,
    reads: int | None = None,
) -> TpuProgram:
    """Choose the program for these shapes. Raises KernelRefusal."""
    if chunk is not None and chunk & (chunk - 1):
        raise KernelRefusal(
            f"attention in chunks of {chunk} tokens: a TPU divides by powers of two only"
        )
    _, kv_heads, page_size, key_lanes = layer.keys.shape
    decodes, (blocks, block) = batch.decode_tables.shape[0], batch.block_limits.shape
    key_lanes = reads or key_lanes
    problem = AttentionShapes(
        decodes=decodes,
        blocks=blocks,
        block=block,
        kv_heads=kv_heads,
        rows=heads // kv_heads,
        key_lanes=key_lanes,
        value_lanes=key_lanes if layer.values is None else layer.values.shape[3],
        arrays=1 if layer.values is None else 2,
        page_size=page_size,
        table=batch.decode_tables.shape[1],
        dtype=layer.keys.dtype,
        scales=len(jax.tree.leaves((layer.key_scales, layer.value_scales))),
        least_run=None if batch.block_ahead is None else batch.least_run,
    )
    sizes = sizes_of(problem)
    return TpuProgram(
        problem, sizes, kinds_of(problem, sizes), Scoring(softcap, window, chunk, problem.products)
    )


def padded(new: LayerPages, group: int, width: int) -> LayerPages:
    """Pad both sides so that a whole group can be read at any token."""

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
    program: TpuProgram,
    units: Units,
    runs: Runs,
    new: LayerPages,
    sinks: list[jax.Array],
    marks: list[jax.Array],
    queries: list[jax.Array],
    layer: LayerPages,
    interpret: Any,
) -> tuple[list[jax.Array], LayerPages]:
    scratch = program.scratch(layer, marks)
    results = [result_shape(program.problem, kind) for kind in program.kinds]
    pools = jax.tree.map(lambda pool: pltpu.HBM(pool.shape, pool.dtype), layer)
    # Pin pools to HBM: XLA may otherwise move small ones to on-chip memory and back in every step.
    there = pl.BlockSpec(memory_space=pltpu.HBM)
    in_hbm, marks_there = jax.tree.map(lambda _: there, (layer, marks))
    specs = [kind.spec(each.shape) for kind, each in zip(program.kinds, queries, strict=True)]
    scalars, inputs = jax.tree.leaves((units, runs)), (new, sinks, marks, *queries, layer)
    before = len(scalars) + len(jax.tree.leaves((new, sinks, marks, queries)))
    after = len(results)
    aliases = {before + index: after + index for index in range(len(jax.tree.leaves(layer)))}
    whole = jax.tree.map(lambda _: pl.BlockSpec(memory_space=pltpu.VMEM), (new, sinks))
    out_specs = [kind.spec(each.shape) for kind, each in zip(program.kinds, results, strict=True)]
    held = vmem_bytes(scratch[:7], (new, sinks), [*queries, *results], [*specs, *out_specs])
    structure = jax.tree.structure
    trees = [structure(each) for each in (units, runs, new, sinks, marks, *queries, layer)]
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
            in_specs=jax.tree.leaves((whole, marks_there, *specs, in_hbm)),
            out_specs=(*out_specs, *jax.tree.leaves(in_hbm)),
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


def vmem_bytes(scratch: Any, whole: Any, blocks: Sequence[Any], specs: Any) -> int:
    """VMEM the call needs, with `whole` in it. Raises KernelRefusal if a chip has less."""
    held = sum(_bytes(each.shape, each.dtype) for each in jax.tree.leaves(scratch))
    held += sum(_bytes(each.shape, each.dtype) for each in jax.tree.leaves(whole))
    for spec, array in zip(specs, blocks, strict=True):
        held += 2 * _bytes(spec.block_shape, array.dtype)
    if held > VMEM_BYTES - VMEM_SPARE:
        raise KernelRefusal(
            f"attention needs {held >> 20} MiB of a TPU's {VMEM_BYTES >> 20}: give the model more "
            "devices to shard its heads over, or use steps of fewer tokens"
        )
    return held


def _bytes(shape: Sequence[int], dtype: Any) -> int:
    """Size padded to whole registers."""
    *outer, rows, width = shape
    return math.prod(outer) * -(-rows // 8) * 8 * lanes(width) * jnp.dtype(dtype).itemsize
