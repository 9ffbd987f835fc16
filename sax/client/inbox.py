"""Destinations for the chunks of one request: queued for a reader, or passed to a callback."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from sax.errors import SaxError
from sax.proto import tokens_pb2

Item = tokens_pb2.Chunk | SaxError


class Mailbox(Protocol):
    """Receives the chunks of one request, in one event loop."""

    heard: bool  # something came

    def put(self, item: Item) -> None:
        """Add an item without blocking; the answer's length bounds the queue."""
        ...


def is_last(chunk: tokens_pb2.Chunk) -> bool:
    return bool(chunk.finish_reason) or chunk.HasField("failure")


class Inbox:
    """Queue of unread chunks, for one reader."""

    __slots__ = ("_items", "_loop", "_waiter", "heard")

    def __init__(self) -> None:
        self.heard = False
        self._items: deque[Item] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item) -> None:
        self.heard = True
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> tokens_pb2.Chunk:
        """Return the next chunk; raises an error that was put instead."""
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
