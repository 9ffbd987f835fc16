"""BodyWriter: writes a part of a streamed body at once, as an extension of ASGI on our connections.

`send` takes each part through every middleware as a coroutine, and its task has to be woken for it
first: a fifth of what a streamed token costs the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_EXTENSION = "sax.body"


class BodyWriter:
    """Writes to the connection of one request, between the first and the last part of its body."""

    __slots__ = ("_cycle", "size")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self.size = 0  # bytes written here, which `send` has not seen

    @staticmethod
    def of(scope: Scope) -> BodyWriter | None:
        """Return the writer of a request; None on connections that are not ours, as in tests."""
        return scope.get("extensions", {}).get(_EXTENSION)

    def put_into(self, scope: Scope) -> None:
        scope.setdefault("extensions", {})[_EXTENSION] = self

    def write(self, data: bytes) -> bool:
        """Write a part that is not empty. False if that is for `send`: before the head is written,
        while the client reads too slowly, and once it is gone."""
        cycle = self._cycle
        between = cycle.chunked_encoding and not cycle.response_complete
        if not between or cycle.flow.write_paused or cycle.disconnected:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.size += len(data)
        return True


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
