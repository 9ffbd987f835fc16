"""Wait for changes of named things without missing one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class ChangeSignal:
    """Wakes waiters for a name. Call `next()` before checking the state, await the event after.

    The name may be omitted if there is only one thing to wait for.
    """

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self.woken = 0  # names posted while someone may have been waiting

    def next(self, name: str = "") -> asyncio.Event:
        if name not in self._events:
            self._events[name] = asyncio.Event()
        return self._events[name]

    def post(self, names: Iterable[str] = ("",)) -> None:
        for name in names:
            event = self._events.pop(name, None)
            if event is not None:
                self.woken += 1
                event.set()

    def post_all(self) -> None:
        self.post(list(self._events))
