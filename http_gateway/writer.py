"""Puts the bytes of one HTTP answer on its way: what is put in one turn of the loop is one write.

No task per write: a `send` that need not wait is over at once, and only one that must (the client
is slow) gets a task. What is put meanwhile makes the next write. Knows nothing of what the bytes
say.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

Write = Callable[[bytes], Coroutine[Any, Any, None]]


class Writer:
    """Writes in order, one write at a time. Lives on one event loop."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._flushing = False  # a flush is due in this turn of the loop
        self._rest: asyncio.Task[None] | None = None  # the write that waits for the client
        # Never a result; the error of a write that nobody awaits.
        self.broken: asyncio.Future[None] = self._loop.create_future()

    def put(self, data: bytes) -> None:
        """Write it soon, together with what is put until then. Never waits."""
        self._parts.append(data)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def finish(self, write: Write, data: bytes) -> None:
        """Write what is left and this, by a last write of the caller's."""
        while self._rest is not None:
            await asyncio.wait((self._rest,))
        if self.broken.done():
            self.broken.result()
        await write(self._take() + data)

    async def stop(self) -> None:
        """Forget what is not written yet."""
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
            self.broken.exception()  # whoever stops first will not look at it

    def _take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


@types.coroutine
def _resume(step: Coroutine[Any, Any, None], waiting: Any) -> Generator[Any, Any, None]:
    """Carry on with a coroutine that was driven by hand up to its first wait."""
    while True:
        try:
            resume = partial(step.send, (yield waiting))
        except BaseException as error:  # a cancel: it interrupts the step
            resume = partial(step.throw, error)
        try:
            waiting = resume()
        except StopIteration:
            return
