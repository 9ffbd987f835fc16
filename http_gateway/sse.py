"""Server-sent events: one ASGI response fed by several iterators, and disconnect detection.

The hot path of the gateway. Each source is pumped by its own task, which writes what is ready
just before it would wait. Starlette's StreamingResponse is not used because it cannot merge
sources, coalesce, or answer an error that comes before the first byte with a real status.
Knows nothing of tokens or of OpenAI: sources yield values, encoders make bytes.
"""

from __future__ import annotations

import asyncio
import logging
import types
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Sequence,
)
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sax.errors import Cancelled, Internal, SaxError

log = logging.getLogger(__name__)

T = TypeVar("T")
Flush = Callable[[], Coroutine[Any, Any, None]]

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
# Events in one write at most: a source that never waits is written all the same.
_BURST = 256


def event(data: bytes) -> bytes:
    """One event with this data, which holds no newline."""
    return b"data: " + data + b"\n\n"


DONE = event(b"[DONE]")


async def disconnected(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until their clean-up has run."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away (raises Cancelled)."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("the client went away")
    finally:
        await stop(task, gone)


class Ending(Enum):
    """How a stream came to its end."""

    COMPLETE = "complete"
    BROKEN = "broken"  # by an error, after bytes had been sent
    REFUSED = "refused"  # by an error, told as an ordinary answer
    GONE = "gone"  # the client went away


@dataclass(slots=True)
class Source(Generic[T]):
    """One iterator and how each of its values is written; b"" says nothing."""

    values: AsyncGenerator[T, None]
    encode: Callable[[T], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a stream says besides its values, and whom it tells."""

    # After the last value of the last source; raises if what was said is not whole.
    closing: Callable[[], bytes]
    failure: Callable[[SaxError], bytes]  # instead of closing, once bytes have been sent
    on_first: Callable[[], None]
    on_end: Callable[[Ending], None]


class EventStream(Response, Generic[T]):
    """Sends the events of all sources as they come; an error before the first one is raised."""

    def __init__(self, sources: Sequence[Source[T]], script: Script) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)
        self._sources = sources
        self._script = script
        self._parts: list[bytes] = []
        self._sending = asyncio.Lock()
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def flush() -> None:
            if self._parts:
                async with self._sending:
                    if self._parts:  # a source that wrote in the meantime has taken them along
                        await self._send(send, self._take(), more=True)

        pumps = [asyncio.create_task(self._pump(source, flush)) for source in self._sources]
        gone = asyncio.create_task(disconnected(receive))
        ending = Ending.REFUSED
        try:
            ending = await self._run(pumps, gone, flush, send)
        finally:
            await stop(*pumps, gone)
            self._script.on_end(ending)

    async def _pump(self, source: Source[T], flush: Flush) -> None:
        """Write a source's events to the end. Raises SaxError; what it left is sent by others."""
        encode, parts = source.encode, self._parts
        try:
            while True:
                data = encode(await _next(source.values, flush))
                if data:
                    parts.append(data)
                    if len(parts) >= _BURST:
                        await flush()
        except StopAsyncIteration:
            return
        except SaxError:
            raise
        except Exception as exc:
            log.exception("a stream broke")
            raise Internal("an internal error; the gateway's log has it") from exc
        finally:
            await source.values.aclose()

    async def _run(
        self,
        pumps: Sequence[asyncio.Task[None]],
        gone: asyncio.Task[None],
        flush: Flush,
        send: Send,
    ) -> Ending:
        pending = set(pumps)
        while pending:
            done, _ = await asyncio.wait({*pending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                return Ending.GONE
            try:
                for pump in done:
                    pump.result()
            except SaxError as error:
                await stop(*pumps)
                return await self._fail(error, send)
            pending -= done
            if pending:
                await flush()
        return await self._close(send)

    async def _close(self, send: Send) -> Ending:
        try:
            closing = self._script.closing()
        except SaxError as error:
            return await self._fail(error, send)
        await self._send(send, self._take() + closing, more=False)
        return Ending.COMPLETE

    async def _fail(self, error: SaxError, send: Send) -> Ending:
        if not self._started:
            raise error
        await self._send(send, self._take() + self._script.failure(error), more=False)
        return Ending.BROKEN

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            self._script.on_first()
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
        await send({"type": "http.response.body", "body": data, "more_body": more})

    def _take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


@types.coroutine
def _next(values: AsyncGenerator[T, None], flush: Flush) -> Generator[Any, Any, T]:
    """`anext`, but `flush` runs just before it would wait.

    So values that are ready at once are written together, and the last of them at once, without
    a second task to wake for each token. The step of `anext` is driven by hand up to its first
    wait; what it waits for (a future, or None to let others run) is handed to the loop after
    the flush: a future that is done by then wakes its task at once.
    """
    step = values.__anext__().__await__()
    try:
        waiting = next(step)
    except StopIteration as ready:
        return ready.value
    resume: Callable[[], Any] | None = None
    try:
        yield from flush().__await__()
    except BaseException as error:  # a cancel, or a broken connection: it interrupts the step
        resume = partial(step.throw, error)
    while True:
        if resume is None:
            try:
                value = yield waiting
            except BaseException as error:
                resume = partial(step.throw, error)
            else:
                resume = partial(step.send, value)
        try:
            waiting = resume()
        except StopIteration as ready:
            return ready.value
        resume = None
