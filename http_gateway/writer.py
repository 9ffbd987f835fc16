"""Coalescing writer for one HTTP reply: bytes put while a write is under way go into the next.

A plain task: to drive each write by hand instead saves 0.9 us of the gateway's 35 us per token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class ConnectionWriter:
    """Writes in order, one write at a time, in a task of its own."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._parts: list[bytes] = []
        self._ready = asyncio.Event()
        self._finishing = False
        self.task = asyncio.create_task(self._run())  # ends early only with a write's error

    def put(self, data: bytes) -> None:
        """Queue data for the next write. Never blocks."""
        self._parts.append(data)
        self._ready.set()

    async def finish(self, write: Write, data: bytes) -> None:
        """Write what is queued plus `data`, using `write` for this last time."""
        self._finishing = True
        self._ready.set()
        await self.task
        await write(self._take() + data)

    async def stop(self) -> None:
        """Drop what is queued and cancel the write under way."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._ready.wait()
            if self._finishing:
                return
            self._ready.clear()
            await self._write(self._take())

    def _take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data
