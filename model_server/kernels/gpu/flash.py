"""Flash attention over pages on GPUs: splitting a call into programs and merging their results.

Programs look up keys and values through the page table themselves: nothing is gathered in memory. A
context is split over as many programs as fill the GPU (flash decoding), evenly over what the
sequence has cached at that moment, so few long sequences are as fast as many short ones.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from model_server.kernels.gpu.program import LOG2_E, GpuProgram, product_dtype
from model_server.kernels.gpu.tiles import covered, tiles_for
from model_server.kernels.paged import KernelRefusal
from model_server.kernels.pages import LayerPages

_STAGES = 2  # iterations whose keys and values load at once


def paged_attention(
    q: jax.Array,  # f32[N, C, H, Q]
    layer: LayerPages,  # in token_major_shapes
    tables: jax.Array,  # i32[N, S/G]
    limits: jax.Array,  # i32[N, C]
    ahead: jax.Array | None = None,  # i32[N, C]
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    sinks: jax.Array | None = None,
    chunk: int | None = None,
    interpret: bool = False,
) -> jax.Array:
    """As `reference.paged_attention`, with queries and weights rounded to `product_dtype`.

    Raises KernelRefusal for pages that Triton would address wrongly.
    """
    _check_addresses(layer)
    n, c, h, d = q.shape
    kv_heads = layer.keys.shape[1]
    width = d if layer.values is None else layer.values.shape[3]
    rows = c * h // kv_heads
    program = _program(layer, tables, limits, rows, width, (softcap, window, chunk))
    # Heads before queries, so that neighbours in a program share a query head. With a soft cap the
    # conversion to base 2 comes after the tanh.
    queries = (q * (scale * LOG2_E if softcap is None else scale)).astype(
        product_dtype(layer.keys.dtype)
    )
    queries = queries.reshape(n, c, kv_heads, -1, d).transpose(0, 2, 3, 1, 4)
    more = program.tiles.rows * program.tiles.row_blocks - rows
    queries = jnp.pad(
        queries.reshape(n, kv_heads, rows, d), ((0, 0), (0, 0), (0, more), (0, covered(d) - d))
    )

    def of_each_row(limits: jax.Array) -> jax.Array:
        return jnp.pad(jnp.tile(limits, (1, h // kv_heads)), ((0, 0), (0, more)))

    bounds = [of_each_row(limits)] + ([] if ahead is None else [of_each_row(limits + ahead)])
    sums, highest, total = _found(program, queries, layer, tables, bounds, interpret)
    of_rows = _of_rows(sinks, kv_heads, rows, more)
    output = _together(sums, highest, total, of_rows)[:, :, :rows, :width]
    output = output.reshape(n, kv_heads, h // kv_heads, c, width).transpose(0, 3, 1, 2, 4)
    return output.reshape(n, c, h, width)


def _check_addresses(layer: LayerPages) -> None:
    """Triton's offsets are signed 32-bit up to 4 GiB, 64-bit beyond."""
    for array in jax.tree.leaves(layer):
        size = array.size * array.dtype.itemsize
        if array.size > 2**31 and size <= 2**32:
            raise KernelRefusal(
                f"pages of {array.dtype.name} take {size / 2**30:.1f} GiB for the keys of one layer"
                " on a device: use at most 2 GiB or more than 4, or another page dtype"
            )


def _program(
    layer: LayerPages,
    tables: jax.Array,
    limits: jax.Array,
    rows: int,
    width: int,
    scoring: tuple[float | None, int | None, int | None],
) -> GpuProgram:
    _, kv_heads, page_size, key_dim = layer.keys.shape
    _, window, chunk = scoring
    context, near = tables.shape[1] * page_size, chunk or window
    tiles = tiles_for(
        sequences=tables.shape[0],
        kv_heads=kv_heads,
        rows=rows,
        key_dim=key_dim,
        width=width,
        shared=layer.values is None,
        itemsize=product_dtype(layer.keys.dtype).itemsize,
        context=context if near is None else min(context, near + limits.shape[1]),
    )
    return GpuProgram(tiles, width, *scoring)


def _found(
    program: GpuProgram,
    queries: jax.Array,  # [N, K, R, Q]
    layer: LayerPages,
    tables: jax.Array,  # i32[N, S/G]
    bounds: list[jax.Array],  # i32[N, R]: limits; and where they differ, what is seen in all
    interpret: bool,
) -> list[jax.Array]:
    """Per split: sums f32[splits, N, K, R, W], highest scores and totals f32[splits, N, K, R]."""
    n, kv_heads, rows, columns = queries.shape
    tiles = program.tiles

    def shared(*size: int) -> tuple[Any, pl.BlockSpec]:
        shape = jax.ShapeDtypeStruct((tiles.splits, n, kv_heads, rows, *size), jnp.float32)
        block = (None, None, None, tiles.rows, *size)
        return shape, pl.BlockSpec(block, lambda r, s, k, i: (s, i, k, r, *[0] * len(size)))

    out_shape, out_specs = zip(shared(covered(program.width)), shared(), shared(), strict=True)
    return pl.pallas_call(
        program.__call__ if len(bounds) == 1 else program.looking_ahead,
        grid=(tiles.row_blocks, tiles.splits, kv_heads, n),
        in_specs=[
            pl.BlockSpec((None, None, tiles.rows, columns), lambda r, s, k, i: (i, k, r, 0)),
            jax.tree.map(lambda _: pl.BlockSpec(), layer),
            pl.BlockSpec((None, tables.shape[1]), lambda r, s, k, i: (i, 0)),
            *[pl.BlockSpec((None, tiles.rows), lambda r, s, k, i: (i, r))] * len(bounds),
        ],
        out_specs=list(out_specs),
        out_shape=list(out_shape),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=_STAGES),
        interpret=interpret,
        name="paged_attention",
    )(queries, layer, tables, *bounds)


def _of_rows(sinks: jax.Array | None, kv_heads: int, rows: int, more: int) -> jax.Array | None:
    """f32[K, R] from f32[H], to base 2: a row is a query with one of its heads, heads first."""
    if sinks is None:
        return None
    of_heads = (sinks * LOG2_E).reshape(kv_heads, -1)
    return jnp.pad(jnp.repeat(of_heads, rows // of_heads.shape[1], axis=1), ((0, 0), (0, more)))


def _together(
    output: jax.Array, highest: jax.Array, total: jax.Array, sinks: jax.Array | None
) -> jax.Array:
    """Merge the splits and the sinks: f32[N, K, R, W]; rows that saw nothing give zeros."""
    most = highest.max(0)
    most = most if sinks is None else jnp.maximum(most, sinks[None])
    part = jnp.exp2(highest - most[None])
    divisor = (total * part).sum(0)
    divisor = divisor if sinks is None else divisor + jnp.exp2(sinks[None] - most)
    return (output * part[..., None]).sum(0) / jnp.maximum(divisor, 1e-30)[..., None]
