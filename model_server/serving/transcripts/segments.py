"""Cuts the tokens of a window into segments at its timestamps. Pure.

Two timestamps side by side end one segment and begin the next. What comes after the last pair was
cut off by the window's end, so the next window begins there and hears it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FRAMES_A_STEP = 2  # of the spectrogram between two timestamps
STEP_S = 0.02


class Piece(NamedTuple):
    start: float  # seconds after the window's start
    end: float
    tokens: tuple[int, ...]  # with timestamps


class CutWindow(NamedTuple):
    pieces: list[Piece]
    frames: int  # from this window's start to the next one's


def cut(tokens: Sequence[int], first_timestamp: int, frames: int) -> CutWindow:
    """Cut a window's answer; frames: of sound in the window."""
    times = [token >= first_timestamp for token in tokens]
    pairs = [at for at in range(1, len(tokens)) if times[at - 1] and times[at]]
    if not pairs:
        return CutWindow([_whole(tokens, first_timestamp, frames)], frames)
    ends_alone = times[-2:] == [False, True]  # no speech after the last timestamp
    ends = [*pairs, len(tokens)] if ends_alone else pairs
    pieces = [
        Piece(
            (tokens[begin] - first_timestamp) * STEP_S,
            (tokens[end - 1] - first_timestamp) * STEP_S,
            tuple(tokens[begin:end]),
        )
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    if ends_alone:
        return CutWindow(pieces, frames)
    advance = (tokens[pairs[-1] - 1] - first_timestamp) * FRAMES_A_STEP
    return CutWindow(pieces, advance if 0 < advance <= frames else frames)


def _whole(tokens: Sequence[int], first_timestamp: int, frames: int) -> Piece:
    """Return the only segment: to its last timestamp, or to the window's end."""
    last = max((token for token in tokens if token >= first_timestamp), default=first_timestamp)
    steps = last - first_timestamp or frames // FRAMES_A_STEP
    return Piece(0.0, steps * STEP_S, tuple(tokens))
