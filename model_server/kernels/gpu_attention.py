"""Paged attention on GPUs: every device writes and reads what it holds of the pages.

The reading is a kernel in Pallas, whose Triton backend is public and goes through XLA's compiler.
It is not cuDNN's paged attention: JAX keeps that private (`jax.nn.dot_product_attention` takes no
page tables), and it has no float32, no int8 and no scales of each token. Nor is it
`jax.experimental.pallas.ops.gpu.paged_attention`: that one has a single query to a sequence, no
window, values as wide as keys, and sizes that are powers of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from model_server.kernels.gpu_flash import paged_attention
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages, Shapes
from model_server.kernels.refusal import KernelRefusal
from model_server.kernels.row_split import RowSplit
from model_server.kernels.token_major import token_major_shapes, write_tokens


@dataclass(frozen=True, slots=True)
class GpuAttention:
    """The kernel of NVIDIA's GPUs from Ampere on; pages of float8 take Ada or Hopper at least."""

    mesh: Mesh | AbstractMesh
    heads: str | None  # the mesh axis that divides query heads
    pages: str | None  # the mesh axis that divides the KV heads of pages
    interpret: bool = False  # step by step on any platform: for tests

    @property
    def shapes(self) -> Shapes:
        return token_major_shapes

    def attend(
        self,
        batch: PagedBatch,
        layer: LayerPages,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array | None,
        *,
        scale: float,
        softcap: float | None,
        window: int | None,
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`. Raises KernelRefusal: heads and pages do not go together."""
        self._check(layer)
        parts = _parts(batch, q)
        row_axes = [self._row_axis(batch.split, queries.shape[0]) for queries, _, _ in parts]
        heads = PartitionSpec(None, self.pages)
        nowhere = PartitionSpec()
        lies = jax.tree.map(lambda _: heads, (layer, k, v))
        places = [PartitionSpec(rows, None, self.heads) for rows in row_axes]
        tables = [PartitionSpec(rows) for rows in row_axes]
        read = partial(
            paged_attention, scale=scale, softcap=softcap, window=window, interpret=self.interpret
        )
        on_mesh = jax.shard_map(
            partial(_written_and_read, read),
            mesh=self.mesh,
            in_specs=(*lies, nowhere, nowhere, list(zip(places, tables, tables, strict=True))),
            out_specs=(places, lies[0]),
            check_vma=False,  # a kernel does not say over which axes its results vary
        )
        attended, layer = on_mesh(layer, k, v, batch.pages, batch.offsets, parts)
        return jnp.concatenate([_flat(part) for part in attended]), layer

    def _check(self, layer: LayerPages) -> None:
        """Query heads find their KV head by place, so it has to be on their device."""
        together = self.heads == self.pages
        if not together and (self.pages is not None or layer.keys.shape[1] > 1):
            raise KernelRefusal(
                f"query heads are divided over {self.heads}, their {layer.keys.shape[1]} KV heads "
                f"over {self.pages}: divide both alike, or have one KV head on all devices"
            )

    def _row_axis(self, split: RowSplit | None, rows: int) -> str | None:
        """The mesh axis that divides decode rows or prompt blocks."""
        if split is None or not split.attention or rows % self.mesh.shape[split.axis]:
            return None
        return split.axis


# Queries [N, C, H, Q] of decode rows or of prompt blocks, their tables, their limits.
_Part = tuple[jax.Array, jax.Array, jax.Array]


def _parts(batch: PagedBatch, q: jax.Array) -> list[_Part]:
    decodes, blocks = batch.decode_tables.shape[0], batch.block_tables.shape[0]
    parts = [(q[:decodes, None], batch.decode_tables, batch.decode_limits)]
    if blocks:
        queries = q[decodes:].reshape(blocks, -1, *q.shape[1:])
        parts.append((queries, batch.block_tables, batch.block_limits))
    return [part for part in parts if part[0].shape[0]]


def _written_and_read(
    read: Any,  # as gpu_flash.paged_attention
    layer: LayerPages,
    k: jax.Array,
    v: jax.Array | None,
    pages: jax.Array,
    offsets: jax.Array,
    parts: list[_Part],
) -> tuple[list[jax.Array], LayerPages]:
    """Of one device, on what it holds."""
    layer = write_tokens(layer, k, v, pages, offsets)
    return [read(queries, layer, tables, limits) for queries, tables, limits in parts], layer


def _flat(attended: jax.Array) -> jax.Array:
    """[N, C, H, W] as f32[T, H, W]."""
    return attended.reshape(-1, *attended.shape[2:])
