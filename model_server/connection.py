"""The requests of one caller: starts them, cancels them, gathers their chunks.

All chunks of one engine step are taken at once, whatever the number of requests: that is what
makes one message per connection and step. Knows nothing of the wire.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from model_server.handler import Handler
from model_server.running_request import RunningRequest
from sax.errors import InvalidRequest, SaxError
from sax.types import GenerateRequest, TokenChunk


class Delivery(NamedTuple):
    """What one request of the connection gained; an error or a finish reason is its end."""

    id: int
    chunk: TokenChunk | SaxError


class Connection:
    """Lives on the event loop. `take` until it gives nothing, and `close` in any case."""

    def __init__(self, handler: Handler, method: str) -> None:
        self._handler = handler
        self._method = method
        self._requests: dict[int, RunningRequest | None] = {}  # None: being submitted
        self._outbox: list[Delivery] = []
        self._ready = asyncio.Event()
        self._ended = False

    async def start(self, id: int, request: GenerateRequest) -> None:
        """Start a request under an id of the caller's. A bad one fails alone, in `take`."""
        if id in self._requests:
            raise InvalidRequest(f"request {id} runs already: number requests uniquely", param="id")
        self._requests[id] = None
        try:
            running = await self._handler.start(
                request, self._method, lambda chunk: self._put(id, chunk)
            )
        except SaxError as error:
            self._put(id, error)
        except BaseException:
            del self._requests[id]
            raise
        else:
            self._requests[id] = running

    def fail(self, id: int, error: SaxError) -> None:
        """A request that could not even be read."""
        self._put(id, error)

    def cancel(self, id: int) -> None:
        """Forget a request; one that is over or unknown is forgotten already."""
        running = self._requests.pop(id, None)
        if running is not None:
            running.cancel()
            self._ready.set()

    async def take(self) -> list[Delivery]:
        """Everything since the last call, as soon as there is something; [] when all is over."""
        while not self._outbox:
            if self._ended and not self._requests:
                return []
            self._ready.clear()
            await self._ready.wait()
        taken, self._outbox = self._outbox, []
        return taken

    def end(self) -> None:
        """No more requests will come."""
        self._ended = True
        self._ready.set()

    def close(self) -> None:
        """The caller is gone: cancel whatever runs."""
        for running in self._requests.values():
            if running is not None:
                running.cancel()
        self._requests.clear()
        self.end()

    def _put(self, id: int, chunk: TokenChunk | SaxError) -> None:
        if isinstance(chunk, SaxError) or chunk.finish_reason is not None:
            self._requests.pop(id, None)
        self._outbox.append(Delivery(id, chunk))
        self._ready.set()
