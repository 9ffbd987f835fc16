"""Fencing: obeys only the admin server of the latest term.

A leader that was paused or cut off may not know yet that another one leads; its commands are
refused here. A term not heard of for a while is forgotten, so that a cell whose state was wiped,
and whose terms restart, can use its servers again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sax.errors import NotLeading

_FORGET_S = 30.0  # a live leader polls the status every second


class Terms:
    """Tracks the latest term seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest = 0
        self._heard_s = 0.0

    def check(self, term: int) -> None:
        """Raise NotLeading for an older term; 0 is an admin without terms (Saxml's)."""
        now = self._clock()
        if not term:
            return
        if term < self._latest and now - self._heard_s < _FORGET_S:
            raise NotLeading(
                f"this model server obeys the admin server of term {self._latest}, which took the "
                f"lead after the one of term {term}: that one must step down",
                param="",
            )
        self._latest, self._heard_s = term, now
