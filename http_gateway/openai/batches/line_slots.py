"""LineSlots: lines of batches at once, of which one goes on while somebody waits for an answer.

Model servers share their slots among accounts, and a priority counts within one only. So it is the
gateway that keeps batches behind the requests that people wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

_LOOK_S = 0.2  # until it is seen that nobody waits any more


class LineSlots:
    def __init__(self, most: int, busy: Callable[[], bool]) -> None:
        """busy: True while this gateway serves requests."""
        self._most = most
        self._busy = busy
        self._running = 0
        self._freed = asyncio.Event()

    async def acquire(self) -> None:
        """Wait until one more line may run."""
        while self._running >= (1 if self._busy() else self._most):
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._freed.wait()
        self._running += 1

    def release(self) -> None:
        self._running -= 1
        self._freed.set()
