"""Durations of programs: what a dispatch is charged with. Pure: times are handed in."""

from __future__ import annotations

from collections import deque
from statistics import median

FIRST_S = 0.001  # of a program that was not measured yet
_KEPT = 5  # measurements: one that a pause of the machine spoilt would starve its client


class Durations:
    """Measured only while clients compete: alone, nobody is charged."""

    def __init__(self) -> None:
        self._took: dict[tuple[int, int], deque[float]] = {}  # (session, program) -> seconds
        self._free: dict[int, float] = {}  # island -> when its last measured work ended

    def expected(self, session: int, program: int) -> float:
        """Return the seconds that a program of a session is expected to take."""
        return median(self._took.get((session, program), (FIRST_S,)))

    def measured(
        self, session: int, program: int, island: int, sent_s: float, ended_s: float
    ) -> None:
        """Note that work was sent and has ended; an island does one thing after the other."""
        took = max(0.0, ended_s - max(sent_s, self._free.get(island, 0.0)))
        self._free[island] = ended_s
        self._took.setdefault((session, program), deque(maxlen=_KEPT)).append(took)

    def forget(self, session: int) -> None:
        for key in [key for key in self._took if key[0] == session]:
            del self._took[key]
