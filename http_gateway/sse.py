"""Server-sent events: one ASGI response fed by several sources, and disconnect detection.

The hot path of the gateway. Each source has a task, but its values arrive by callback and are
written without waking the task, which saves about a sixth of the cost of a token. Starlette's
StreamingResponse is not used because it cannot merge sources, coalesce writes, or answer an error
before the first byte with a proper status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from http_gateway.access import RequestRecord
from sax.errors import Internal, SaxError

_EXTENSION = "sax.body"
log = logging.getLogger(__name__)

T = TypeVar("T")
# Calls back with each value as it arrives; returns after the last.
Feed = Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


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


def event(data: bytes) -> bytes:
    """Frame one event; `data` must not contain a newline."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """Frame one event that has a name."""
    return b"event: %b\n%b" % (name.encode(), event(data))


DONE = event(b"[DONE]")


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Ending(Enum):
    COMPLETE = "complete"
    BROKEN = "broken"  # an error after bytes were sent
    REFUSED = "refused"  # an error before any byte, answered with its own status
    GONE = "gone"  # the client disconnected


@dataclass(slots=True)
class EventSource(Generic[T]):
    """A feed of values and its encoder; values encoded as b"" are not written."""

    feed: Feed[T]
    encode: Callable[[T], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Framing and callbacks of a stream."""

    # Bytes after the last value of the last source; raises if the stream is incomplete.
    closing: Callable[[], bytes]
    # Replaces `closing` once bytes were sent; None: the body stays incomplete, and looks it.
    failure: Callable[[SaxError], bytes | None]
    on_first: Callable[[], None]
    on_end: Callable[[Ending], None]


class EventStream(Response, Generic[T]):
    """Sends the events of all sources as they arrive; raises an error before the first event."""

    def __init__(
        self,
        sources: Sequence[EventSource[T]],
        script: Script,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """headers: beside, or in place of, those of server-sent events."""
        self.status_code, self.background = 200, None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._sources = sources
        self._script = script
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = BodyWriter.of(scope)
        # Several sources have values in one turn of the loop, which are better written as one.
        at_once = None if body is None or len(self._sources) > 1 else body.write
        writer = ConnectionWriter(lambda data: self._send(send, data, more=True), at_once)
        pumps = [asyncio.create_task(_pump(source, writer)) for source in self._sources]
        gone = asyncio.create_task(disconnected(receive))
        ending = Ending.REFUSED
        try:
            ending = await self._run(pumps, gone, writer, send)
        finally:
            await stop(*pumps, gone)
            await writer.stop()
            self._script.on_end(ending)

    async def _run(
        self,
        pumps: Sequence[asyncio.Task[None]],
        gone: asyncio.Task[None],
        writer: ConnectionWriter,
        send: Send,
    ) -> Ending:
        try:
            if not await _all_said(pumps, gone, writer.task):
                return Ending.GONE
            last, ending = self._script.closing(), Ending.COMPLETE
        except SaxError as error:
            await stop(*pumps)
            if not self._started:
                raise
            last, ending = self._script.failure(error), Ending.BROKEN
        if last is not None:
            await writer.finish(lambda data: self._send(send, data, more=False), last)
        return ending

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        if not self._started:
            self._started = True
            self._script.on_first()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": more})


async def _pump(source: EventSource[T], writer: ConnectionWriter) -> None:
    """Write a source's events to the end. Raises SaxError."""
    encode, put = source.encode, writer.put

    def write(value: T) -> None:
        if data := encode(value):
            put(data)

    try:
        await source.feed(write)
    except SaxError:
        raise
    except Exception as exc:
        record = RequestRecord.current()
        log.exception("the stream of request %s failed", record.request_id)
        raise Internal(record.internal_error) from exc


async def _all_said(
    pumps: Sequence[asyncio.Task[None]], gone: asyncio.Task[None], writing: asyncio.Task[None]
) -> bool:
    """Wait for all pumps; False if the client left first. Raises the error of a pump or write."""
    pending = set(pumps)
    while pending:
        watched = {*pending, gone, writing}
        done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if gone in done:
            return bool(gone.result())  # False, or the error of one who ended it
        for each in done:
            each.result()
        pending -= done
    return True
