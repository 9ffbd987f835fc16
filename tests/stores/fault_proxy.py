"""A proxy before a storage server that lets through, refuses, delays, stalls or cuts as told.

One request per connection, so that a change of mood holds for the very next request.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.stores.place import Place

Mood = Literal[
    "well",  # as if there were no proxy
    "slow down",  # 503, as S3 throttles
    "too many",  # 429, as Google throttles
    "late",  # done, and answered after `delay_s`
    "stall",  # the request is taken, and nothing ever comes back
    "lost",  # done, and the connection is cut before the answer
    "lost write",  # the same for writes; reads are answered
    "cut",  # not done, and the connection is closed
    "reset",  # not done, and the connection is reset
    "forgetful",  # the condition of a write is taken out: an S3 server that ignores it
]
_REFUSALS = {
    "slow down": b"503 Slow Down\r\n",
    "too many": b"429 Too Many Requests\r\n",
}
_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_QUIET_S = 2.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection: *[^\r]*", re.IGNORECASE)
_CONDITION = re.compile(rb"\r\nif-none-match: *[^\r]*", re.IGNORECASE)


@dataclass(slots=True)
class FaultProxy:
    """Lives on the event loop."""

    upstream: str  # http://host:port
    mood: Mood = "well"
    delay_s: float = 0.2
    requests: int = 0
    url: str = ""
    _serving: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def before(self, place: Place) -> Place:
        """The same corner of the bucket, by way of this proxy."""
        return replace(place, env={**place.env, "AWS_ENDPOINT_URL": self.url})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if (task := asyncio.current_task()) is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        try:
            await self._request(await _read_request(reader), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client gave up
        finally:
            writer.close()

    async def until_quiet(self) -> None:
        """Until the connections under way have ended; their sockets are closed then."""
        await _rounds()  # those that were accepted a moment ago begin
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=_QUIET_S)
            for task in late:  # their clients do not give up
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await _rounds()

    async def _request(
        self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.requests += 1
        mood = self.mood
        if mood == "stall":
            await reader.read()  # until the client gives up
        elif mood == "reset":
            _reset(writer)
        elif mood in _REFUSALS:
            writer.write(b"HTTP/1.1 " + _REFUSALS[mood] + b"Connection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY)
            await writer.drain()
        elif mood != "cut":
            if mood == "forgetful":
                request = _CONDITION.sub(b"", request, count=1)
            answer = await self._forward(request)
            if mood == "lost" or (mood == "lost write" and request.startswith(b"PUT")):
                return
            await asyncio.sleep(self.delay_s if mood == "late" else 0)
            writer.write(answer)
            await writer.drain()

    async def _forward(self, request: bytes) -> bytes:
        split = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(split.hostname, split.port)
        try:
            writer.write(request)
            answer = await reader.read()
        finally:
            writer.close()
        return answer


@asynccontextmanager
async def fault_proxy(upstream: str) -> AsyncGenerator[FaultProxy]:
    """A proxy on a free port."""
    proxy = FaultProxy(upstream)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.until_quiet()


async def _rounds() -> None:
    """Let the loop go round some times: after a stall one sleep is over in the first of them."""
    for _ in range(10):
        await asyncio.sleep(0.002)


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    """Head and body; the server is asked to close, so that its answer ends where it ends."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    body = await reader.readexactly(int(length[1])) if length else b""
    head = _CONNECTION.sub(b"", head)
    return head[:-2] + b"Connection: close\r\n\r\n" + body


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
