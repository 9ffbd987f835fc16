"""Updates on their way from the engine's thread to those who receive them.

Each delivery wakes an event loop, sends a message and wakes a gateway and its caller. Where steps
follow each other faster than anybody reads, several steps share that: on two cores, which the next
step needs, it costs up to a fifth of the tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from math import inf

from model_server.engine.request import SequenceUpdate

Deliver = Callable[[list[SequenceUpdate]], None]


class Outbox:
    """Delivers updates in order, at most once per interval unless one is urgent.

    Urgent are the first and the last update of a sequence: a caller waits for these.
    """

    def __init__(self, deliver: Deliver, interval_s: float = 0.0) -> None:
        """deliver: must not block. interval_s: 0 delivers every step."""
        self._deliver = deliver
        self._interval_s = interval_s
        self._updates: list[SequenceUpdate] = []
        self._begun: set[int] = set()  # sequences between their first and their last update
        self._urgent = False
        self._last_s = -inf

    def add(self, updates: Iterable[SequenceUpdate]) -> None:
        for update in updates:
            self._updates.append(update)
            if update.finish is not None or update.error is not None:
                self._begun.discard(update.sequence)
                self._urgent = True
            elif update.sequence not in self._begun:
                self._begun.add(update.sequence)
                self._urgent = True

    def flush(self, *, more: bool = False) -> None:
        """Deliver what is here; `more` follows soon, so what is not urgent may wait for it."""
        if not self._updates:
            return
        now_s = time.monotonic()
        if more and not self._urgent and now_s - self._last_s < self._interval_s:
            return
        self._last_s, self._urgent = now_s, False
        # They leave the outbox first, so none is delivered twice.
        updates, self._updates = self._updates, []
        self._deliver(updates)
