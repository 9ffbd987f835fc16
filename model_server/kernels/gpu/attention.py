"""Paged attention on GPUs: every device writes and reads its own shard of the pages.

Pages are read by a Pallas kernel, whose Triton backend is public and goes through XLA's compiler.
Not cuDNN's paged attention: JAX keeps that private (`jax.nn.dot_product_attention` takes no page
tables), and it has no float32, int8 or per-token scales. Not
`jax.experimental.pallas.ops.gpu.paged_attention` either: it takes one query per sequence, no
window, values as wide as keys, and only sizes that are powers of two.

Programs look up keys and values through the page table themselves: nothing is gathered in memory. A
context is split over as many programs as fill the GPU (flash decoding), evenly over what the
sequence has cached at that moment, so few long sequences are as fast as many short ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from model_server.kernels.gpu.program import LOG2_E, GpuProgram, product_dtype
from model_server.kernels.gpu.tiles import covered, tiles_for
from model_server.kernels.paged import KernelRefusal, NewTokens, PagedBatch, Scores
from model_server.kernels.pages import CacheShape, LayerPages, Shapes, page_arrays, stored
from model_server.kernels.sequence_sharding import SequenceSharding

_STAGES = 2  # iterations whose keys and values load at once


def token_major_shapes(
    cache: CacheShape, pages: int, page_size: int, dtype: jnp.dtype
) -> LayerPages:
    """Keys [P + 1, K, G, Q], values [P + 1, K, G, W], scales f32[P + 1, K, G]."""
    slots = (pages + 1, cache.kv_heads, page_size)
    return page_arrays(cache, (*slots, cache.key_dim), (*slots, cache.value_dim), slots, dtype)


def write_tokens(
    layer: LayerPages,
    keys: jax.Array,  # [T, K, Q]
    values: jax.Array | None,  # [T, K, W]; None: the keys double as values
    pages: jax.Array,  # i32[T]
    offsets: jax.Array,  # i32[T]
) -> LayerPages:
    """Store token t at `offsets[t]` of page `pages[t]`; in place if the pages are donated."""

    def placed(held: jax.Array | None, new: jax.Array) -> jax.Array | None:
        if held is None:
            return None
        return held.at[pages, :, offsets].set(new, mode="promise_in_bounds")

    small, scales = stored(keys, layer.keys.dtype)
    layer = layer._replace(
        keys=placed(layer.keys, small), key_scales=placed(layer.key_scales, scales)
    )
    if layer.values is None or values is None:
        return layer
    small, scales = stored(values, layer.values.dtype)
    return layer._replace(
        values=placed(layer.values, small), value_scales=placed(layer.value_scales, scales)
    )


@dataclass(frozen=True, slots=True)
class GpuAttention:
    """The kernel for NVIDIA GPUs from Ampere on; float8 pages need Ada or Hopper."""

    mesh: Mesh | AbstractMesh
    heads: str | None  # mesh axis that shards query heads
    pages: str | None  # mesh axis that shards the KV heads of pages
    interpret: bool = False  # interpret on any platform, for tests

    @property
    def shapes(self) -> Shapes:
        return token_major_shapes

    def attend(
        self, batch: PagedBatch, layer: LayerPages, new: NewTokens, scores: Scores
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`. Raises KernelRefusal if head and page shardings conflict."""
        self._check(layer)
        q, k, v = new
        parts = _parts(batch, q)
        row_axes = [self._row_axis(batch.split, part[0].shape[0]) for part in parts]
        heads = PartitionSpec(None, self.pages)
        nowhere = PartitionSpec()
        lies = jax.tree.map(lambda _: heads, (layer, k, v))
        places = [PartitionSpec(rows, None, self.heads) for rows in row_axes]
        of_rows = [
            (place, *[PartitionSpec(rows)] * (len(part) - 1))
            for place, rows, part in zip(places, row_axes, parts, strict=True)
        ]
        fixed = scores._replace(sinks=None)._asdict() | {"interpret": self.interpret}
        read = partial(_paged_attention, **fixed)
        on_mesh = jax.shard_map(
            partial(_written_and_read, read),
            mesh=self.mesh,
            in_specs=(
                *lies,
                *(nowhere, nowhere),
                of_rows,
                None if scores.sinks is None else PartitionSpec(self.heads),
            ),
            out_specs=(places, lies[0]),
            check_vma=False,  # a kernel does not declare which axes its results vary over
        )
        given = (layer, k, v, batch.pages, batch.offsets, parts, scores.sinks)
        attended, layer = on_mesh(*given)
        return jnp.concatenate([_flat(part) for part in attended]), layer

    def _check(self, layer: LayerPages) -> None:
        """A query head finds its KV head by index, so both must be on the same device."""
        together = self.heads == self.pages
        if not together and (self.pages is not None or layer.keys.shape[1] > 1):
            raise KernelRefusal(
                f"query heads are sharded over {self.heads}, their {layer.keys.shape[1]} KV heads "
                f"over {self.pages}: shard both alike, or have one KV head on all devices"
            )

    def _row_axis(self, split: SequenceSharding | None, rows: int) -> str | None:
        """Mesh axis that shards decode rows or prompt blocks."""
        if split is None or not split.attention or rows % self.mesh.shape[split.axis]:
            return None
        return split.axis


# Queries [N, C, H, Q] of decode rows or prompt blocks, their tables, their limits, and of blocks
# what they see ahead, if they do.
_Part = tuple[jax.Array, ...]


def _parts(batch: PagedBatch, q: jax.Array) -> list[_Part]:
    decodes, blocks = batch.decode_tables.shape[0], batch.block_tables.shape[0]
    parts: list[_Part] = [(q[:decodes, None], batch.decode_tables, batch.decode_limits)]
    ahead = () if batch.block_ahead is None else (batch.block_ahead,)
    if blocks:
        queries = q[decodes:].reshape(blocks, -1, *q.shape[1:])
        parts.append((queries, batch.block_tables, batch.block_limits, *ahead))
    return [part for part in parts if part[0].shape[0]]


def _written_and_read(
    read: Any,  # as flash.paged_attention
    layer: LayerPages,
    k: jax.Array,
    v: jax.Array | None,
    pages: jax.Array,
    offsets: jax.Array,
    parts: list[_Part],
    sinks: jax.Array | None,
) -> tuple[list[jax.Array], LayerPages]:
    """Runs on one device, over its own shard."""
    layer = write_tokens(layer, k, v, pages, offsets)
    return [read(queries, layer, *where, sinks=sinks) for queries, *where in parts], layer


def _flat(attended: jax.Array) -> jax.Array:
    """Reshape [N, C, H, W] to f32[T, H, W]."""
    return attended.reshape(-1, *attended.shape[2:])


def _paged_attention(
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
