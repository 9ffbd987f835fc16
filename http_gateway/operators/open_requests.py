"""Requests that this gateway is answering, which operators can end, and the use of each key."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_gateway.access.record import RequestRecord
from http_gateway.streams.body_writer import BodyWriter
from sax.auth.acl import caller
from sax.errors import Cancelled, NotFound

Phase = Literal["reading", "working", "answering"]

_READING = ("GET", "HEAD", "OPTIONS")  # such requests reach no model
_MOST_KEYS = 1000


@dataclass(slots=True)
class KeyUse:
    """Use of one key, or of one address without a key, since this gateway started."""

    key: str
    limits: str = ""  # as in the token file
    requests: int = 0  # that ended
    refused: int = 0  # of them, with a status of 400 or more
    prompt_tokens: int = 0
    completion_tokens: int = 0
    last_s: float = 0.0  # seconds since the epoch


class OpenRequest:
    """One request. Its receiver raises Cancelled once an operator ends it, where the app would
    notice a client that leaves."""

    def __init__(self, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        self.number = number
        self.path: str = scope["path"]
        self.record = RequestRecord.current()
        self.began_s = time.time()
        self.status = 0  # of the reply's head; 0: not sent
        self._scope, self._receive, self._send = scope, receive, send
        self._sent = 0
        self._whole = False  # its body has come
        self._ended = False
        self._waiting: asyncio.Task[object] | None = None

    @property
    def phase(self) -> Phase:
        """reading: its body comes; working: nothing of the answer was sent; answering."""
        if self.sent_bytes:
            return "answering"
        return "working" if self._whole else "reading"

    @property
    def sent_bytes(self) -> int:
        writer = BodyWriter.of(self._scope)
        return self._sent + (writer.size if writer is not None else 0)

    def end(self) -> None:
        """Let the app see that the request is over, now or as soon as it looks."""
        self._ended = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def receive(self) -> Message:
        if self._ended:
            raise _cancelled()
        self._waiting = task = asyncio.current_task()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if not self._ended or task is None or task.uncancel():
                raise
            raise _cancelled() from None
        finally:
            self._waiting = None
        self._whole = self._whole or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._sent += len(message.get("body", b""))
        await self._send(message)


def _cancelled() -> Cancelled:
    return Cancelled("an operator of this gateway ended the request")


class OpenRequests:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._numbers = count(1)
        self._running: dict[int, OpenRequest] = {}
        self._uses: OrderedDict[str, KeyUse] = OrderedDict()  # the one used last is the last

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._running.values())

    @property
    def uses(self) -> list[KeyUse]:
        """Return what keys have used, the one that was used last first."""
        return list(reversed(self._uses.values()))

    def begin(self, scope: Scope, receive: Receive, send: Send) -> OpenRequest:
        request = OpenRequest(next(self._numbers), scope, receive, send)
        self._running[request.number] = request
        return request

    def leave(self, request: OpenRequest) -> None:
        """Forget a request, and count what it used."""
        del self._running[request.number]
        record = request.record
        use = self._uses.setdefault(record.key, KeyUse(record.key))
        self._uses.move_to_end(record.key)
        use.limits = str(caller().limits)
        use.requests += 1
        use.refused += request.status >= 400
        use.prompt_tokens += record.prompt_tokens
        use.completion_tokens += record.completion_tokens
        use.last_s = self._clock()
        if len(self._uses) > _MOST_KEYS:
            self._uses.popitem(last=False)

    def get(self, number: int) -> OpenRequest:
        """Raises NotFound."""
        if (found := self._running.get(number)) is None:
            raise NotFound(f"no request has the number {number}: it has ended", param="number")
        return found


class NotedRequests:
    """ASGI middleware, within `Auth`: keeps the requests that can reach a model while they run."""

    def __init__(self, app: ASGIApp, *, running: OpenRequests) -> None:
        self._app = app
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING:
            return await self._app(scope, receive, send)
        request = self._running.begin(scope, receive, send)
        try:
            await self._app(scope, request.receive, request.send)
        finally:
            self._running.leave(request)
