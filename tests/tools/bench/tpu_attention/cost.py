"""Bytes and FLOPs of two attention kernels by their own grids and copies: arithmetic alone."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel as ragged
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import tuned_block_sizes as tuned

from model_server.kernels.pages import LayerPages
from model_server.kernels.tpu.program import program_of
from model_server.kernels.tpu.queries import UnitKind
from model_server.kernels.tpu.units import Runs, Units, runs_of, units_of
from tests.tools.bench.tpu_attention.calls import is_vmem
from tests.tools.bench.tpu_attention.steps import AttentionStep


class AttentionCost(NamedTuple):
    """Of one call of a kernel."""

    fetched: int  # bytes of pages that it copies to the chip to attend to
    modified: int  # bytes of pages that it copies to the chip to put new tokens in
    flops: int  # of its products, masked ones included


def own_cost(step: AttentionStep, kernel: Any, layer: LayerPages) -> AttentionCost:
    """Cost of our kernel, by its own lists of work."""
    batch = step.batch(kernel)
    program = program_of(batch, layer, step.heads, None, None)
    problem, sizes = program.problem, program.sizes
    units: Units = units_of(batch, sizes.queries, step.page, None)
    runs: Runs = runs_of(batch, sizes.group)
    pages = np.asarray(units.end_pages - units.first_pages)
    fresh = int(np.asarray(runs.fresh)[: int(runs.total[0])].sum())
    return AttentionCost(
        fetched=int(pages.sum()) * step.page * problem.token_bytes,
        modified=fresh * sizes.group * problem.token_bytes,
        flops=sum(
            _flops_of(kind, pages, sizes.pages)
            * (problem.kv_heads * step.page * sizes.pages)
            * (problem.key_lanes + problem.value_lanes)
            for kind in program.kinds
        ),
    )


def _flops_of(kind: UnitKind, pages: np.ndarray, per_block: int) -> int:
    """FLOPs per KV head, token of a block and number: two for each row and block."""
    mine = pages[kind.first : kind.first + kind.units]
    return 2 * kind.rows * int((-(-mine // per_block)).sum())


class RaggedSizes(NamedTuple):
    """Sizes of JAX's kernel for one step."""

    pages: int  # per block of keys and values
    queries: int  # tokens per block
    heads: int  # per program
    kv_heads: int


def ragged_sizes(step: AttentionStep, device: str) -> RaggedSizes:
    """Sizes as JAX's table has them for a device, or its defaults. Raises ValueError."""
    bf16 = jnp.dtype("bfloat16")
    heads, both = ragged.get_min_heads_per_blk(step.heads, 2 * step.kv_heads, bf16, bf16)
    key = tuned.simplify_key(
        (bf16, bf16, heads, both // 2, step.head_dim, step.page, step.tokens, step.table)
    )
    pages, queries = tuned.TUNED_BLOCK_SIZES.get(device, {}).get(key, (128, 32))
    return RaggedSizes(min(step.table, pages), min(step.tokens, queries), heads, both // 2)


def ragged_cost(step: AttentionStep, sizes: RaggedSizes) -> AttentionCost:
    """Cost of JAX's kernel: each block of queries goes through each of its sequences."""
    ends = np.cumsum(step.counts)
    starts = ends - step.counts
    width = sizes.pages * step.page
    visits = 0
    for first in range(0, step.tokens, sizes.queries):
        inside = (starts < first + sizes.queries) & (ends > first)
        visits += sum(-(-n // width) for n, yes in zip(step.lengths, inside, strict=True) if yes)
    visits *= step.heads // sizes.heads
    page_bytes = step.page * 2 * sizes.kv_heads * step.head_dim * 2
    per_visit = 4 * sizes.queries * sizes.heads * width * step.head_dim
    return AttentionCost(visits * sizes.pages * page_bytes, 0, visits * per_visit)


def window_bytes(call: Any) -> int:
    """Bytes that the grid of a Pallas call brings to the chip and back: each block once.

    call: its equation. Arrays that stay in HBM do not count: the kernel copies parts of them.
    """
    mappings = call.params["grid_mapping"].block_mappings
    moved = (each for each in mappings if is_vmem(each.transformed_block_aval))
    return sum(_whole_bytes(each.array_aval, each.transformed_block_aval.shape) for each in moved)


def _whole_bytes(array: Any, block: tuple[int, ...]) -> int:
    blocks = (-(-size // part) * part for size, part in zip(array.shape, block, strict=True))
    return math.prod(blocks) * jnp.dtype(array.dtype).itemsize


def arrays_like(step: AttentionStep) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of a step: f32[T, H, Q], f32[T, K, Q] twice."""
    q = jnp.zeros((step.tokens, step.heads, step.head_dim), jnp.float32)
    k = jnp.zeros((step.tokens, step.kv_heads, step.head_dim), jnp.float32)
    return q, k, k
