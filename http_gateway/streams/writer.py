"""Coalescing writer for one HTTP reply: bytes put while a write is under way go into the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class ConnectionWriter:
    """Writes in order, one write at a time: at once where that is possible, else in a task."""

    def __init__(self, write: Write, at_once: Callable[[bytes], bool] | None = None) -> None:
        """at_once: writes without waiting, or returns False if it cannot; None: it never can."""
        self._write = write
        self._at_once = at_once
        self._writing = False
        self._parts: list[bytes] = []
        self._ready = asyncio.Event()
        self._finishing = False
        self.task = asyncio.create_task(self._run())  # ends early only with a write's error

    def put(self, data: bytes) -> None:
        """Write data, or queue it for the next write. Never blocks."""
        if not (self._writing or self._parts) and self._at_once is not None and self._at_once(data):
            return
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
            self._writing = True
            await self._write(self._take())
            self._writing = False

    def _take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data
