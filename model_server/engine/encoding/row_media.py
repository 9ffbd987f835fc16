"""Chunks of prompts with media: where they may end, and what their rows carry. Pure."""

from __future__ import annotations

from model_server.engine.media.media_limits import MediaLimits
from model_server.engine.media.media_span import RowMedia
from model_server.engine.sequence import Sequence

_TRIPLE = 12  # bytes of three i32


def media_of(sequence: Sequence, start: int, end: int, limits: MediaLimits) -> RowMedia | None:
    """Return the further columns of a chunk of prompt and answer."""
    together: list[tuple[int, int]] = []
    if limits.bidirectional:
        for span in sequence.media:
            for first, last in span.runs:
                if first < end and last > start:
                    together.append((max(first - start, 0), last - start))
    positions = sequence.positions[_TRIPLE * start : _TRIPLE * end]
    if together or positions or sequence.shift:
        return RowMedia(sequence.shift, positions, tuple(together))
    return None


def next_media_of(sequence: Sequence) -> RowMedia:
    """Return the columns of a decode."""
    return RowMedia(sequence.shift)


def whole_length(sequence: Sequence, start: int) -> int:
    """Return the tokens up to the end of the run that a chunk begins in; 0: it begins outside."""
    for first, last in _runs(sequence):
        if first <= start < last:
            return last - start
    return 0


def uncut(sequence: Sequence, start: int, length: int) -> int:
    """Return the length of the longest chunk, up to this one, that ends within no run."""
    end = start + length
    for first, last in _runs(sequence):
        if first < end < last:
            return max(0, first - start)
    return length


def _runs(sequence: Sequence) -> list[tuple[int, int]]:
    return [run for span in sequence.media for run in span.runs]
