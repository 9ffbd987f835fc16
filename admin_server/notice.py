"""Waiting for a change of one name, without missing one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Notice:
    """Wakes those who wait for a name. Take `next()` before you look, await it after.

    Where there is only one thing to wait for it needs no name.
    """

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self.woken = 0  # names that were posted while somebody may have waited

    def next(self, name: str = "") -> asyncio.Event:
        """The event of the name's next change."""
        if name not in self._events:
            self._events[name] = asyncio.Event()
        return self._events[name]

    def post(self, names: Iterable[str] = ("",)) -> None:
        """These changed."""
        for name in names:
            event = self._events.pop(name, None)
            if event is not None:
                self.woken += 1
                event.set()

    def post_all(self) -> None:
        """Any may have changed."""
        self.post(list(self._events))
