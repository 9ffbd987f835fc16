"""Sizes of a sequence's next prompt chunk and of the pages that its prefill takes. Pure."""

from __future__ import annotations

from model_server.engine.limits import EngineLimits
from model_server.engine.sequence import Sequence


def chunk_length(sequence: Sequence, limits: EngineLimits, free_pages: int, blocks: int) -> int:
    """Return whole blocks, unless the chunk ends the prefill."""
    start, block = sequence.launched, limits.prefill_block
    left = sequence.goal - start
    room = (len(sequence.pages) + free_pages) * limits.page_size - start
    length = max(0, min(left, room, blocks * block))
    if limits.windows.recurrent and start % block:
        return min(length, block - start % block)  # no block crosses the border of a page
    return length - length % block if length < left else length


def pages_to_begin(sequence: Sequence, page_size: int) -> int:
    """Return the pages of a waiting sequence's prefill, and one if it will go on beyond them.

    Those that take slots with it share the full pages of its prompt.
    """
    pages = -(-min(len(sequence.tokens), sequence.end) // page_size)
    pages += pages * page_size < sequence.end
    return pages + (sequence.width - 1) * (pages - sequence.prompt // page_size)


def pages_lacking(sequence: Sequence, page_size: int) -> int:
    """Return the pages that a running sequence lacks for its prefill, and one beyond them."""
    pages = len(sequence.pages)
    if sequence.launched >= sequence.goal:
        return pages * page_size < sequence.end
    prefill = -(-sequence.goal // page_size)
    return prefill - pages + (prefill * page_size < sequence.end)
