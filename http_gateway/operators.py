"""/cell/requests, /cell/keys and /cell/log: this gateway's own requests and keys, servers' logs.

Operators are those who may publish any model of the cell: the admin server decides it. Everyone
else sees and ends requests of their own key only, and no log.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_gateway.access import RequestRecord
from http_gateway.body_writer import BodyWriter
from http_gateway.cell_client import CellClient
from http_gateway.openapi import ALWAYS, JSON, operation
from http_gateway.page.routes import WatchedCell
from sax.activity import SERVED_PHASES, ServedPhase
from sax.auth.acl import caller
from sax.errors import Cancelled, NotFound, PermissionDenied
from sax.flags.last_lines import LogLine, last_lines

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


_FRESH = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_OWN = "requests of your own key only: the operators of this cell (--admin_acl) may do more"
_ADMIN = "admin"
_SECRET = "the log is for the operators of this cell: ask them to name you in --admin_acl"


class ShownRequest(TypedDict):
    """One request that runs. `phase`: of several answers, of the one that is least far. At this
    gateway it is reading (its body comes), working, or answering; at a model server encoding (its
    prompt becomes tokens), queued, prefill, or decode. `queue_s`: how long
    it waited at a model server, null before its first token. `trace_url`: "" where there is none.
    """

    number: int
    id: str
    key: str
    path: str
    model: str
    phase: Phase | ServedPhase
    running_s: float
    queue_s: float | None
    sent_bytes: int
    trace_url: str


class ShownRequests(TypedDict):
    """The requests of this gateway; `all`: of every key."""

    all: bool
    requests: list[ShownRequest]


class ShownKeys(TypedDict):
    """Use of keys since the gateway started, at `since_s` of the epoch."""

    all: bool
    since_s: float
    keys: list[KeyUse]


class ShownLog(TypedDict):
    """The last lines of a server's log, the newest last."""

    lines: list[LogLine]


class OperatorRoutes:
    def __init__(
        self,
        client: CellClient,
        running: OpenRequests,
        cell: WatchedCell,
        trace_url: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """trace_url: of a trace, with {trace_id} in it; "": traces have no links."""
        self._client, self._running = client, running
        self._cell, self._trace_url = cell, trace_url
        self._clock, self._since_s = clock, clock()

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        add = router.add_api_route
        for path, route, reply in (
            ("/cell/requests", self.requests, ShownRequests),
            ("/cell/keys", self.keys, ShownKeys),
        ):
            add(path, route, methods=["GET"], **operation(reply, statuses=(*ALWAYS, 504)))
        found = (*ALWAYS, 404, 422, 504)
        add("/cell/log", self.log, methods=["GET"], **operation(ShownLog, statuses=found))
        ended = operation(ShownRequest, statuses=found)
        add("/cell/requests/{number}", self.end, methods=["DELETE"], **ended)
        return router

    async def requests(self) -> Response:
        """List the requests that run, the oldest first; of other keys only for operators."""
        sees_all = await self._operates()
        seen = [each for each in self._running if sees_all or _is_own(each.record)]
        phases = await self._client.phases([id for each in seen for id in each.record.cell_ids])
        shown = [self._shown(each, phases) for each in seen]
        return _reply(ShownRequests(all=sees_all, requests=shown))

    async def end(self, number: Annotated[int, Path(ge=1, le=2**53)]) -> Response:
        """End a request that runs: its caller is told, and its slot is free with the next step."""
        request = self._running.get(number)
        if not _is_own(request.record) and not await self._operates():
            raise PermissionDenied(f"you may end {_OWN}", param="number")
        shown = self._shown(request, {})
        request.end()
        return _reply(shown)

    async def keys(self) -> Response:
        """List what keys used, the one used last first; other keys only for operators."""
        sees_all, own = await self._operates(), RequestRecord.current().key
        uses = [each for each in self._running.uses if sees_all or each.key == own]
        return _reply(ShownKeys(all=sees_all, since_s=self._since_s, keys=uses))

    async def log(self, server: Annotated[str, Query(max_length=300)] = "") -> Response:
        """Return the last lines of a log, for operators.

        server: `admin` for the admin server that leads, HOST:PORT of a model server; this gateway's
        own without it.
        """
        if not await self._operates():
            raise PermissionDenied(_SECRET)
        return _reply(ShownLog(lines=await self._lines(server)))

    async def _lines(self, server: str) -> list[LogLine]:
        if not server:
            return last_lines()
        return [*await self._client.log("" if server == _ADMIN else server)]

    async def _operates(self) -> bool:
        """True if the caller may change every model, and its key is limited to none."""
        rights = await self._cell.rights()
        return rights is not None and rights.publish and not caller().limits.models

    def _shown(self, request: OpenRequest, phases: Mapping[str, ServedPhase]) -> ShownRequest:
        record = request.record
        return {
            "number": request.number,
            "id": record.request_id,
            "key": record.key,
            "path": request.path,
            "model": record.model,
            "phase": _phase(request, phases),
            "running_s": round(max(0.0, self._clock() - request.began_s), 2),
            "queue_s": record.queue_s,
            "sent_bytes": request.sent_bytes,
            "trace_url": self._trace_of(record),
        }

    def _trace_of(self, record: RequestRecord) -> str:
        if record.span is None or not self._trace_url:
            return ""
        return self._trace_url.replace("{trace_id}", f"{record.span.context.trace_id:032x}")


def _phase(request: OpenRequest, phases: Mapping[str, ServedPhase]) -> Phase | ServedPhase:
    served: list[ServedPhase] = [phases[each] for each in request.record.cell_ids if each in phases]
    order = SERVED_PHASES.index
    return min(served, key=order) if served else request.phase


def _is_own(record: RequestRecord) -> bool:
    return record.key == RequestRecord.current().key


def _reply(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON, headers=_FRESH)
