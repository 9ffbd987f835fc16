"""Waiting for a change, without missing one."""

from __future__ import annotations

import asyncio


class Notice:
    """Wakes everyone who waits. Take `next()` before you look, await it after."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """The event of the next change."""
        return self._event

    def post(self) -> None:
        """Something changed."""
        self._event.set()
        self._event = asyncio.Event()
