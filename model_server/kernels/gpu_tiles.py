"""How attention on a GPU is cut into programs: arithmetic on sizes alone.

A program has query rows of one KV head and a share of the context, and takes some tokens of it at
a time. Triton wants every size to be a power of two, its tensor cores 16 at least.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_LEAST = 16  # rows, tokens or columns of a product on tensor cores
_PROGRAMS = 264  # two for each multiprocessor of an H100; others have 80 to 170 of them
_SHARE = 256  # tokens that are worth a program of their own
_TOKEN_BYTES = 48 * 2**10  # keys and values of one trip; the next are loaded meanwhile
_ROW_BYTES = 48 * 2**10  # queries of a program
_HELD = 64 * 128  # numbers of output that four warps keep in registers


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one call is cut."""

    rows: int  # query rows of a program
    row_blocks: int  # programs that share the rows of a KV head
    tokens: int  # of the context at a time
    splits: int  # programs that share the context of a row
    warps: int


def tiles_for(
    *,
    sequences: int,
    kv_heads: int,
    rows: int,
    key_dim: int,
    width: int,  # of the values
    shared: bool,  # the keys are the values too
    itemsize: int,  # of the numbers that are multiplied
    context: int,  # tokens that a query may see at most
) -> Tiles:
    """For rows of every KV head of each sequence."""
    tile = min(64, at_least(rows), _at_most(_ROW_BYTES // (max(key_dim, width) * itemsize)))
    row_blocks = -(-rows // tile)
    loaded = (key_dim if shared else key_dim + width) * itemsize
    tokens = min(64, at_least(context), _at_most(_TOKEN_BYTES // loaded))
    programs = sequences * kv_heads * row_blocks
    splits = min(-(-_PROGRAMS // programs), -(-context // max(_SHARE, tokens)))
    return Tiles(tile, row_blocks, tokens, splits, warps=4 if tile * width <= _HELD else 8)


def at_least(size: int) -> int:
    """The next power of two that a product can have."""
    return max(_LEAST, 1 << (size - 1).bit_length())


def _at_most(size: int) -> int:
    return max(_LEAST, 1 << size.bit_length() >> 1)


def spans(size: int) -> Iterator[tuple[int, int]]:
    """Start and size of powers of two that cover so many columns: 576 is 512 and 64.

    Of the last one columns may be beyond the end, 15 at most.
    """
    start = 0
    while start < size:
        span = _at_most(size - start)
        yield start, span
        start += span


def covered(size: int) -> int:
    """Columns that the spans have."""
    return -(-size // _LEAST) * _LEAST
