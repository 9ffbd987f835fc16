"""Detects a stuck event loop, from another thread.

A process whose loop is stuck answers nothing but would look alive forever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

STUCK_S = 60.0  # no correct callback takes this long: loads and compiles run on other threads
_TICK_S = 1.0


class LoopWatch:
    """Start it on the event loop; call `trouble` from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at_s = clock()
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call on the loop to watch."""
        self._moved_at_s = self._clock()  # may have been created long ago
        self._ticking = asyncio.create_task(self._tick())

    def stop(self) -> None:
        """Call when the loop is about to end."""
        if self._ticking is not None:
            self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._moved_at_s = self._clock()
            await asyncio.sleep(_TICK_S)

    def trouble(self) -> str:
        """Describe the problem; "" while the loop moves."""
        still_s = self._clock() - self._moved_at_s
        if still_s < STUCK_S:
            return ""
        return f"the event loop has not moved for {still_s:.0f} s: this process must be restarted"
