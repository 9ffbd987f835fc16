"""Where the chunks of one request go: kept until they are read, or handed on at once.

One request, one event loop. Knows nothing of streams, of servers or of other requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from sax import codec
from sax.errors import SaxError
from sax.proto import tokens_pb2
from sax.types import TokenChunk

Item = tokens_pb2.Chunk | SaxError


class Mailbox(Protocol):
    """Takes what comes for one request."""

    def put(self, item: Item) -> None:
        """Never blocks: an answer's length bounds what can pile up."""
        ...


def is_last(chunk: tokens_pb2.Chunk) -> bool:
    """Whether the server has said all it has to say about this request."""
    return bool(chunk.finish_reason) or chunk.HasField("failure")


class Inbox:
    """What came and was not read yet. One reader."""

    __slots__ = ("_items", "_loop", "_waiter")

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> tokens_pb2.Chunk:
        """The next chunk. Raises the error that was put in its place."""
        while not self._items:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if isinstance(item, SaxError):
            raise item
        return item


class Outlet:
    """Hands chunks to a sink as they come: no task is woken for a token, only for the end."""

    __slots__ = ("_sink", "over")

    def __init__(self, sink: Callable[[TokenChunk], None]) -> None:
        self._sink = sink
        # The last chunk, or the error that came in its place or out of the sink.
        self.over: asyncio.Future[tokens_pb2.Chunk] = asyncio.get_running_loop().create_future()

    def put(self, item: Item) -> None:
        if self.over.done():
            return
        try:
            if isinstance(item, SaxError):
                raise item
            if not self._hand_on(item):
                self.over.set_result(item)
        except Exception as exc:  # a bug in one sink must not end the stream of all requests
            self.over.set_exception(exc)
            self.over.exception()  # a reader that was cancelled will not look at it

    def _hand_on(self, chunk: tokens_pb2.Chunk) -> bool:
        """Whether there is more to come."""
        if chunk.HasField("failure"):
            return False
        decoded = codec.decode_chunk(chunk)
        self._sink(decoded)
        return decoded.finish_reason is None
