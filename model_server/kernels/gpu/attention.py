"""Paged attention on GPUs: every device writes and reads its own shard of the pages.

Pages are read by a Pallas kernel, whose Triton backend is public and goes through XLA's compiler.
Not cuDNN's paged attention: JAX keeps that private (`jax.nn.dot_product_attention` takes no page
tables), and it has no float32, int8 or per-token scales. Not
`jax.experimental.pallas.ops.gpu.paged_attention` either: it takes one query per sequence, no
window, values as wide as keys, and only sizes that are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from model_server.kernels.gpu.flash import paged_attention
from model_server.kernels.paged import (
    KernelRefusal,
    NewTokens,
    PagedBatch,
    Scores,
)
from model_server.kernels.pages import CacheShape, LayerPages, Shapes, page_arrays, stored
from model_server.kernels.sequence_sharding import SequenceSharding


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
        read = partial(paged_attention, **fixed)
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
