"""What happened in a cell lately that no record tells of: servers came and went, loads failed.

Kept in memory, bounded, and gone with the process: the log of records is what lasts. Knows nothing
of who tells or who reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_KEPT = 500


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happened."""

    number: int  # counts up from 1
    at_s: float  # seconds since the epoch
    kind: str  # joined, dropped, restarted, ready, load-failed, unloaded, asked-for, ...
    text: str  # in words
    server: str = ""
    model_id: str = ""


class Happenings:
    """The last of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: deque[Happening] = deque(maxlen=_KEPT)
        self._number = 0

    def note(self, kind: str, text: str, *, server: str = "", model_id: str = "") -> None:
        """It happened now."""
        self._number += 1
        self._kept.append(Happening(self._number, self._clock(), kind, text, server, model_id))

    def newest(self, limit: int, model_id: str = "") -> list[Happening]:
        """At most so many, of one model or of all, the newest first."""
        matching = (h for h in reversed(self._kept) if not model_id or h.model_id == model_id)
        return [happening for happening, _ in zip(matching, range(limit), strict=False)]
