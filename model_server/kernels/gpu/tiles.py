"""Tile sizes of GPU attention: arithmetic on sizes alone.

A program has query rows of one KV head and a split of the context, and processes some tokens of it
at a time. Triton needs every size to be a power of two; its tensor cores need at least 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LEAST = 16  # rows, tokens or columns in a tensor-core product
_PROGRAMS = 264  # two per multiprocessor of an H100; other GPUs have 80 to 170 of them
_SHARE = 256  # fewest tokens worth a separate program
_TOKEN_BYTES = 48 * 2**10  # keys and values per iteration; the next ones load meanwhile
_ROW_BYTES = 48 * 2**10  # queries per program
_HELD = 64 * 128  # output numbers that four warps keep in registers


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    rows: int  # query rows per program
    row_blocks: int  # programs per KV head's rows
    tokens: int  # context tokens per iteration
    splits: int  # programs per row's context
    warps: int


def tiles_for(
    *,
    sequences: int,
    kv_heads: int,
    rows: int,
    key_dim: int,
    width: int,  # of the values
    shared: bool,  # the keys double as values
    itemsize: int,  # of the numbers that are multiplied
    context: int,  # most tokens a query may see
) -> AttentionTiles:
    """Choose tile sizes; rows: per KV head and sequence."""
    tile = min(64, at_least(rows), _at_most(_ROW_BYTES // (max(key_dim, width) * itemsize)))
    row_blocks = -(-rows // tile)
    loaded = (key_dim if shared else key_dim + width) * itemsize
    tokens = min(64, at_least(context), _at_most(_TOKEN_BYTES // loaded))
    programs = sequences * kv_heads * row_blocks
    splits = min(-(-_PROGRAMS // programs), -(-context // max(_SHARE, tokens)))
    return AttentionTiles(tile, row_blocks, tokens, splits, warps=4 if tile * width <= _HELD else 8)


def at_least(size: int) -> int:
    """Next power of two that a product supports."""
    return max(_LEAST, 1 << (size - 1).bit_length())


def _at_most(size: int) -> int:
    return max(_LEAST, 1 << size.bit_length() >> 1)


def spans(size: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of power-of-two spans that cover `size` columns: 576 is 512 and 64.

    The last span may reach up to 15 columns beyond the end.
    """
    start = 0
    while start < size:
        span = _at_most(size - start)
        yield start, span
        start += span


def covered(size: int) -> int:
    return -(-size // _LEAST) * _LEAST
