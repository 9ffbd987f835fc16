"""Whether the event loop still moves, seen from another thread.

A process whose loop stands answers nobody and would look alive for ever. Knows nothing of what runs
on the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STUCK_S = 60.0  # nothing that is right takes so long: loads and compiles have threads of their own
_TICK_S = 1.0


class LoopWatch:
    """Start it on the loop; ask it from anywhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at_s = clock()
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """On the loop that is to be watched."""
        self._moved_at_s = self._clock()  # it may have been made long before
        self._ticking = asyncio.create_task(self._tick())

    def stop(self) -> None:
        """The loop is about to end."""
        if self._ticking is not None:
            self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._moved_at_s = self._clock()
            await asyncio.sleep(_TICK_S)

    def trouble(self) -> str:
        """What is wrong, in words; "": the loop moves."""
        still_s = self._clock() - self._moved_at_s
        if still_s < STUCK_S:
            return ""
        return f"the event loop has not moved for {still_s:.0f} s: this process must be restarted"
