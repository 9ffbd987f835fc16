"""Block sizes of the TPU kernel, computed from shapes alone.

Nothing is looked up in a table of measurements: each constant below says what it is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp

from model_server.kernels.paged import KernelRefusal
from model_server.kernels.tpu.pages import LANES, SUBLANES
from model_server.kernels.tpu.units import most_queries

MIB = 2**20
FETCHED_BYTES = MIB // 2  # per block: far more than memory delivers while one copy starts
FETCHED_TOKENS = (128, 1024)  # min and max
DEPTH = 4  # fetched blocks in VMEM: one in use, three in flight
PACKED = 2 * SUBLANES  # rows of bf16 in a register
UNIT_ROWS = 512  # rows of a prompt part per KV head: enough to be compute-bound
UNIT_RUNS = 8  # of tokens that see each other, per prompt part: each compares all scores once more
TILE_ROWS = 256  # of scores at a time
SCORE_BYTES = MIB // 2  # of scores at a time
STEP_BYTES = MIB  # of queries, and again of results, per grid step
WRITTEN_BYTES = 2 * MIB  # of groups in flight, in and out
WRITES = (4, 16)  # groups in flight, min and max
VMEM_BYTES = 56 * MIB  # v5p and v7x have 64
VMEM_SPARE = 8 * MIB  # for the compiler
SMEM_BYTES = 768 * 2**10  # of 1 MiB


@dataclass(frozen=True, slots=True)
class AttentionShapes:
    """Shapes of one layer's attention on one device."""

    decodes: int  # D
    blocks: int  # N
    block: int  # C
    kv_heads: int  # K
    rows: int  # query heads per KV head
    key_lanes: int
    value_lanes: int  # also of results
    arrays: int  # 2: values have their own rows
    page_size: int  # G
    table: int  # S/G
    dtype: jnp.dtype  # of pages
    scales: int  # number of scale arrays
    least_run: int | None = None  # tokens of a run that see each other, at least; None: none do

    @property
    def products(self) -> jnp.dtype:
        """Dtype of products: f32 for f32 pages, else bf16; sums are always f32."""
        return jnp.dtype("float32" if self.dtype == jnp.float32 else "bfloat16")

    @property
    def token_bytes(self) -> int:
        """Bytes per cached token on this device."""
        values = self.value_lanes if self.arrays > 1 else 0
        return self.kv_heads * (self.key_lanes + values) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Sizes:
    group: int  # tokens of a page read, modified and written back together
    writes: int  # groups in flight
    pages: int  # per fetched block
    queries: int  # per prompt part
    decode_rows: int  # per KV head of a decode, padded
    block_rows: int  # per KV head of a prompt part, padded
    decode_units: int  # per grid step


@dataclass(frozen=True, slots=True)
class Tile:
    """Heads and rows whose scores are computed at a time."""

    heads: int
    rows: int


def sizes_of(problem: AttentionShapes) -> Sizes:
    """Raises KernelRefusal if the page tables do not fit the scalar memory."""
    _check_tables(problem)
    queries = _divisor(problem.block, _most_queries(problem))
    group = _group(problem)
    return Sizes(
        group=group,
        writes=_clamp(WRITTEN_BYTES // (group * problem.token_bytes), *WRITES),
        pages=_pages(problem),
        queries=queries,
        decode_rows=_up(problem.rows, SUBLANES),
        block_rows=_up(queries * problem.rows, PACKED),
        decode_units=_divisor(problem.decodes, max(1, STEP_BYTES // _decode_bytes(problem))),
    )


def tile_of(problem: AttentionShapes, sizes: Sizes, rows: int) -> Tile:
    """Tile of a unit with this many rows per KV head."""
    row_bytes = 4 * sizes.pages * problem.page_size
    most = min(TILE_ROWS, SCORE_BYTES // row_bytes)
    high = rows if rows <= most else _divisor(rows // PACKED, most // PACKED) * PACKED
    heads = max(1, min(TILE_ROWS // high, SCORE_BYTES // (high * row_bytes)))
    return Tile(_divisor(problem.kv_heads, heads), high)


def _most_queries(problem: AttentionShapes) -> int:
    most, least = max(1, UNIT_ROWS // problem.rows), problem.least_run
    return most if least is None else min(most, most_queries(UNIT_RUNS, least))


def _group(problem: AttentionShapes) -> int:
    """A tile of the dtype; whole pages if there are scales, which are stored a page per row."""
    tile = SUBLANES * 4 // problem.dtype.itemsize
    return problem.page_size if problem.scales else math.gcd(tile, problem.page_size)


def _pages(problem: AttentionShapes) -> int:
    """Whole `cleared_tokens`; also whole lanes of scores, unless the page size forbids it."""
    cleared, size = cleared_tokens(problem.page_size), problem.page_size
    even = math.lcm(size, LANES)
    unit = even if even <= FETCHED_TOKENS[1] else cleared
    tokens = _clamp(FETCHED_BYTES // problem.token_bytes, *FETCHED_TOKENS)
    return min(_up(tokens, unit), _up(problem.table * size, cleared)) // size


def cleared_tokens(page_size: int) -> int:
    """Tokens that can be overwritten in VMEM without reading them, for any dtype: whole tiles."""
    return math.lcm(page_size, 4 * SUBLANES)


def _decode_bytes(problem: AttentionShapes) -> int:
    heads = _up(problem.kv_heads * problem.rows, SUBLANES)
    return 4 * heads * max(problem.key_lanes, problem.value_lanes)


def _check_tables(problem: AttentionShapes) -> None:
    tables = (problem.decodes + problem.blocks) * problem.table * 4
    if tables > SMEM_BYTES:
        raise KernelRefusal(
            f"the page tables of a step take {tables} bytes but a TPU's scalar memory holds "
            f"{SMEM_BYTES}: use larger pages (now {problem.page_size} tokens), a shorter "
            "context or fewer slots"
        )


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _clamp(number: int, least: int, most: int) -> int:
    return max(least, min(most, number))


def _divisor(number: int, most: int) -> int:
    """Largest divisor up to `most`; 1 if `number` is 0."""
    return max((d for d in range(1, min(number, most) + 1) if number % d == 0), default=1)
