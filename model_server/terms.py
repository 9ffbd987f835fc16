"""Which admin server this model server obeys: the one of the latest term.

A leader that was paused or cut off may not know yet that another one leads; its orders are refused
here. A term that was not heard of for a while is forgotten, so that a cell whose state was wiped,
and whose terms begin anew, finds its servers again. Knows nothing of what the orders are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sax.errors import NotLeading

_FORGET_S = 30.0  # a leader that lives asks for the status every second


class Terms:
    """The latest term that gave orders."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest = 0
        self._heard_s = 0.0

    def check(self, term: int) -> None:
        """Raises NotLeading for an older term; 0 is an admin that knows no terms (Saxml's)."""
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
