"""Paged attention on TPUs: every device writes and attends to its own shard of the heads.

One Pallas call per layer and device does both, in place; see `program.py`. On other machines it can
run interpreted.

Reasons not to use JAX's ragged paged attention, from ten steps compiled for v5e
(docs/reference/benchmarks.md, "Attention on a TPU"; figures of compiler and grids, no times):

- It copies whole blocks of pages, by default 128 of them, where a sequence ends earlier, and for
  decodes computes a block of 32 queries for each: 1.2 to 5.3 times the bytes of the keys and values
  and 18 to 171 times the FLOPs. Ours copies the pages that are seen and computes one query at a
  time: 1.0 times and 1.0 to 8.3 times. Smaller blocks, which a caller may pass, would narrow it.
- A prompt chunk of 512 tokens reads its context 16 times, 32 queries at a time; ours 4 times.
- Heads of 64 and 256 do not compile with it; nor has it latent keys or a scale per token.
- Writing the new tokens is left to its caller.
- It takes 32 to 64 MiB of VMEM, ours 2 to 13.

JAX's is better around the kernel: it takes and gives bfloat16, where XLA moves 1.5 to 10 times as
much for ours (20 MiB instead of 8 for the prompt chunk) and has up to 0.4 MiB of temporaries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from model_server.kernels.chosen import Choosing, Chosen
from model_server.kernels.paged import KernelRefusal, NewTokens, PagedBatch, Scores
from model_server.kernels.pages import LayerPages, Shapes
from model_server.kernels.states import MemoryTokens, StatePlaces
from model_server.kernels.tpu import choosing as choices
from model_server.kernels.tpu import memories, program
from model_server.kernels.tpu.pages import tpu_shapes


@dataclass(frozen=True, slots=True)
class TpuAttention:
    """The `Kernel` for TPUs, with pages in the layout of `tpu_shapes`."""

    mesh: Mesh | AbstractMesh
    heads: str | None  # mesh axis that shards query heads; None: replicated
    pages: str | None  # mesh axis that shards the KV heads of pages; None: replicated
    interpret: bool | pltpu.InterpretParams = False
    memories: str | None = None  # mesh axis that shards memories, if it divides their heads

    @property
    def shapes(self) -> Shapes:
        return tpu_shapes

    def attend(
        self, batch: PagedBatch, layer: LayerPages, new: NewTokens, scores: Scores
    ) -> tuple[jax.Array, LayerPages]:
        """As `PagedBatch.attend`. Raises KernelRefusal if head and page shardings conflict."""
        kv_heads = new.k.shape[1]
        if self.heads != self.pages and kv_heads > 1:
            raise KernelRefusal(
                f"query heads are sharded over {self.heads} and {kv_heads} KV heads over "
                f"{self.pages}: only heads that share one KV head can be sharded alone"
            )
        if batch.split is not None:
            new = jax.tree.map(batch.split.gathered, new)

        fixed = scores._replace(sinks=None)._asdict() | {"interpret": self.interpret}

        def local(sinks: jax.Array | None, *inputs: Any) -> tuple[jax.Array, LayerPages]:
            return program.attend(*inputs, **(fixed | {"sinks": sinks}))

        queries = PartitionSpec(None, self.heads)
        tokens = pages = PartitionSpec(None, self.pages)
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(
                None if scores.sinks is None else PartitionSpec(self.heads),
                PartitionSpec(),
                *(pages, queries, tokens, tokens),
            ),
            out_specs=(queries, pages),
            check_vma=False,
        )(scores.sinks, batch, layer, *new)

    def attend_to_chosen(
        self,
        batch: PagedBatch,
        layer: LayerPages,
        q: jax.Array,
        k: jax.Array,
        choosing: Choosing | Chosen,
        *,
        most: int,
        scale: float,
    ) -> tuple[jax.Array, LayerPages, Chosen]:
        """As `ChoosingKernel.attend_to_chosen`: every device chooses, for its own heads."""
        if batch.split is not None:
            q, k = map(batch.split.gathered, (q, k))
            if isinstance(choosing, Choosing):
                choosing = Choosing(*map(batch.split.gathered, choosing))

        def local(*inputs: Any) -> tuple[jax.Array, LayerPages, Chosen]:
            return choices.attend_to_chosen(
                *inputs, most=most, scale=scale, interpret=self.interpret
            )

        queries, whole = PartitionSpec(None, self.heads), PartitionSpec()
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(whole, whole, queries, whole, whole),
            out_specs=(queries, whole, whole),
            check_vma=False,
        )(batch, layer, q, k, choosing)

    def remember(
        self, memory: jax.Array, places: StatePlaces, tokens: MemoryTokens
    ) -> tuple[jax.Array, jax.Array]:
        """As `MemoryKernel.remember`."""
        axis, heads = self.memories, tokens.decay.shape[1]
        if axis is not None and heads % self.mesh.shape[axis]:
            axis = None
        divided = PartitionSpec(None, axis)
        pages = memories.Pages(places.reads, places.writes, places.fresh)

        def local(*inputs: Any) -> tuple[jax.Array, jax.Array]:
            return memories.remember(*inputs, interpret=self.interpret)

        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(divided, PartitionSpec(), divided),
            out_specs=(divided, divided),
            check_vma=False,
        )(memory, pages, tokens)
