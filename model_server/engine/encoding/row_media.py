"""Chunks of prompts with media: where they may end, and what their rows carry. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from model_server.engine.media.media_span import RowMedia
from model_server.engine.request import EngineRequest

_TRIPLE = 12  # bytes of three i32


def media_of(request: EngineRequest, start: int, end: int, *, together: bool) -> RowMedia | None:
    """Return the further columns of a chunk of prompt and answer.

    together: tokens of one image see each other.
    """
    runs = runs_of(request) if together else ()
    seen = tuple((max(first - start, 0), last - start) for first, last in runs if first < end)
    seen = tuple(run for run in seen if run[1] > 0)
    positions = request.positions[_TRIPLE * start : _TRIPLE * end]
    if seen or positions or request.shift:
        return RowMedia(request.shift, positions, seen)
    return None


def whole_length(request: EngineRequest, start: int) -> int:
    """Return the tokens up to the end of the run that a chunk begins in; 0: it begins outside."""
    return next((last - start for first, last in runs_of(request) if first <= start < last), 0)


def uncut(request: EngineRequest, start: int, length: int) -> int:
    """Return the length of the longest chunk, up to this one, that ends within no run."""
    end = start + length
    return next(
        (max(0, first - start) for first, last in runs_of(request) if first < end < last), length
    )


def runs_of(request: EngineRequest) -> Iterator[tuple[int, int]]:
    return (run for span in request.media for run in span.runs)
