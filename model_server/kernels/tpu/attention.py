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

Memories of recurrent layers are updated in place, too: a grid step reads those of some heads from
their page, adds a token, reads an output from them and writes them back. XLA gathers the memories
of all rows, changes them and scatters them: three times the bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from model_server.kernels.chosen import Choosing, Chosen
from model_server.kernels.paged import KernelRefusal, NewTokens, PagedBatch, Scores
from model_server.kernels.pages import LayerPages, Shapes
from model_server.kernels.states import MemoryTokens, StatePlaces
from model_server.kernels.tpu import choosing as choices
from model_server.kernels.tpu import program
from model_server.kernels.tpu.pages import tpu_shapes

_BLOCK_BYTES = 2**20  # of memories per grid step; four such blocks are in VMEM


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
        pages = Pages(places.reads, places.writes, places.fresh)

        def local(*inputs: Any) -> tuple[jax.Array, jax.Array]:
            return _remember(*inputs, interpret=self.interpret)

        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(divided, PartitionSpec(), divided),
            out_specs=(divided, divided),
            check_vma=False,
        )(memory, pages, tokens)


class Pages(NamedTuple):
    """Pages of the memories of D rows."""

    reads: jax.Array  # i32[D]
    writes: jax.Array  # i32[D]
    fresh: jax.Array  # bool[D]: begins with nothing


def _remember(
    memory: jax.Array,  # f32[P + 1, H, A, B]
    pages: Pages,
    tokens: MemoryTokens,  # [D, H, ...]
    *,
    interpret: Any = False,
) -> tuple[jax.Array, jax.Array]:
    """Return the outputs f32[D, H, A or B] and the memories with one token of each row added."""
    rows, heads = tokens.decay.shape
    _, _, high, wide = memory.shape
    each = _heads_per_step(heads, 4 * high * wide)
    groups = heads // each

    def held(page: int) -> pl.BlockSpec:
        shape = (1, each, high, wide)
        return pl.BlockSpec(shape, lambda row, group, *scalars: (scalars[page][row], group, 0, 0))

    def vectors(size: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, 1, each, size), lambda row, group, *_: (row, group, 0, 0))

    def grouped(array: jax.Array) -> jax.Array:
        return array.reshape(rows, groups, each, -1)

    made_size = high if tokens.rate is None else wide
    decay = jnp.exp(tokens.decay)
    rate = decay if tokens.rate is None else tokens.rate
    written, made = pl.pallas_call(
        functools.partial(_kernel, heads=heads, each=each, corrects=tokens.rate is not None),
        out_shape=(
            jax.ShapeDtypeStruct(memory.shape, memory.dtype)
            if interpret
            else pltpu.HBM(memory.shape, memory.dtype),
            jax.ShapeDtypeStruct((rows, groups, each, made_size), jnp.float32),
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5,
            grid=(rows, groups),
            in_specs=[held(0), *(vectors(part.shape[-1]) for part in tokens[:3])],
            out_specs=[held(1), vectors(made_size)],
        ),
        input_output_aliases={5: 0},
        interpret=interpret,
    )(
        pages.reads,
        pages.writes,
        pages.fresh.astype(jnp.int32),
        decay.reshape(-1),
        rate.reshape(-1),
        _kept_in_hbm(memory, interpret),
        *map(grouped, tokens[:3]),
    )
    return made.reshape(rows, heads, -1), written


def _kept_in_hbm(memory: jax.Array, interpret: Any) -> jax.Array:
    """Pin a pool: XLA may otherwise move a small one to on-chip memory and back in every step."""
    return memory if interpret else pltpu.with_memory_space_constraint(memory, pltpu.HBM)


def _heads_per_step(heads: int, size: int) -> int:
    """Return a divisor of the heads of so many bytes each."""
    fitting = max(1, _BLOCK_BYTES // size)
    return max(count for count in range(1, heads + 1) if heads % count == 0 and count <= fitting)


def _kernel(
    reads: Any,
    writes: Any,
    fresh: Any,  # i32[D]
    decay: Any,  # f32[D * H]
    rate: Any,  # f32[D * H]
    held: Any,  # f32[1, E, A, B]
    column: Any,  # f32[1, 1, E, A]
    row: Any,  # f32[1, 1, E, B]
    read: Any,  # f32[1, 1, E, A or B]
    left: Any,  # f32[1, E, A, B]
    made: Any,  # f32[1, 1, E, A or B]
    *,
    heads: int,
    each: int,
    corrects: bool,
) -> None:
    at, group = pl.program_id(0), pl.program_id(1)
    begins = jnp.full(held.shape[2:], fresh[at]) != 0
    for head in range(each):
        scalar, one = at * heads + group * each + head, slice(head, head + 1)
        # Of a page that is not read the numbers may be none.
        was = jnp.where(begins, 0.0, held[0, head] * decay[scalar])
        added, given = _upright(column[0, 0, one]), row[0, 0, one]
        if corrects:
            given = rate[scalar] * (given - jnp.sum(was * added, axis=0, keepdims=True))
        now = was + added * given
        left[0, head] = now
        wanted = read[0, 0, one]
        if corrects:
            made[0, 0, one] = jnp.sum(now * _upright(wanted), axis=0, keepdims=True)
        else:
            made[0, 0, one] = _flat(jnp.sum(now * wanted, axis=1, keepdims=True))


def _upright(row: jax.Array) -> jax.Array:
    """Turn f32[1, N] into f32[N, 1]."""
    return jnp.sum(jnp.where(_diagonal(row.shape[1]), row, 0.0), axis=1, keepdims=True)


def _flat(column: jax.Array) -> jax.Array:
    """Turn f32[N, 1] into f32[1, N]."""
    return jnp.sum(jnp.where(_diagonal(column.shape[0]), column, 0.0), axis=0, keepdims=True)


def _diagonal(size: int) -> jax.Array:
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return rows == columns
