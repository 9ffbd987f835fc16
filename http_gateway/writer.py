"""Coalescing writer for one HTTP reply: all bytes put in one turn of the event loop are one write.

No task per write: a `send` that does not block completes at once, and only one that must wait for
a slow client gets a task. Bytes put meanwhile go into the next write.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class ConnectionWriter:
    """Writes in order, one write at a time. Bound to one event loop."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._flushing = False  # a flush is due in this turn of the loop
        self._rest: asyncio.Task[None] | None = None  # the write that waits for a slow client
        # Set only to the error of a write that nobody awaits; never to a result.
        self.broken: asyncio.Future[None] = self._loop.create_future()

    def put(self, data: bytes) -> None:
        """Queue data for the next write. Never blocks."""
        self._parts.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def finish(self, write: Write, data: bytes) -> None:
        """Write what is queued plus `data`, using `write` for this last time."""
        while self._rest is not None:
            await asyncio.wait((self._rest,))
        if self.broken.done():
            self.broken.result()
        await write(self._take() + data)

    async def stop(self) -> None:
        """Drop what is queued and cancel the write under way."""
        self._parts.clear()
        self.broken.cancel()
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.wait((self._rest,))

    def _flush(self) -> None:
        self._flushing = False
        if self._rest is not None or not self._parts:
            return
        writing = self._write(self._take())
        try:
            waiting = writing.send(None)
        except StopIteration:
            return
        except Exception as exc:
            self._break(exc)
        else:
            self._rest = asyncio.ensure_future(_resume(writing, waiting))
            self._rest.add_done_callback(self._go_on)

    def _go_on(self, done: asyncio.Task[None]) -> None:
        self._rest = None
        if done.cancelled():
            return
        if (exc := done.exception()) is not None:
            self._break(exc)
        else:
            self._flush()

    def _break(self, exc: BaseException) -> None:
        self._parts.clear()
        if not self.broken.done():
            self.broken.set_exception(exc)
            self.broken.exception()  # marks it retrieved: a stop may come before anyone awaits it

    def _take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


@types.coroutine
def _resume(step: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Continue a coroutine that was driven by hand up to its first await."""
    while True:
        try:
            resume = partial(step.send, (yield waiting))
        except BaseException as error:  # a cancellation: pass it into the step
            resume = partial(step.throw, error)
        try:
            waiting = resume()
        except StopIteration:
            return
