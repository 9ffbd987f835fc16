"""Recent events of a cell that are not in the log: servers came and went, loads failed.

Kept in memory, bounded, and gone with the process; only the log of records is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_KEPT = 500


@dataclass(frozen=True, slots=True)
class CellEvent:
    number: int  # counts up from 1
    at_s: float  # seconds since the epoch
    kind: str  # joined, left, dropped, restarted, ready, load-failed, unloaded, asked-for, ...
    text: str  # for people
    server: str = ""
    model_id: str = ""


class CellEvents:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: deque[CellEvent] = deque(maxlen=_KEPT)
        self._number = 0

    def note(self, kind: str, text: str, *, server: str = "", model_id: str = "") -> None:
        self._number += 1
        self._kept.append(CellEvent(self._number, self._clock(), kind, text, server, model_id))

    def newest(self, limit: int, model_id: str = "") -> list[CellEvent]:
        """At most `limit`, newest first; of one model if named."""
        matching = (e for e in reversed(self._kept) if not model_id or e.model_id == model_id)
        return [event for event, _ in zip(matching, range(limit), strict=False)]
