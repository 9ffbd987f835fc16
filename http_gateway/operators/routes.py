"""/cell/requests, /cell/keys and /cell/log: this gateway's own requests and keys, servers' logs.

Operators are those who may publish any model of the cell: the admin server decides it. Everyone
else sees and ends requests of their own key only, and no log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, TypedDict

import msgspec
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from http_gateway.access.record import RequestRecord
from http_gateway.cell_client import CellClient
from http_gateway.openapi import ALWAYS, JSON, operation
from http_gateway.operators.open_requests import KeyUse, OpenRequest, OpenRequests, Phase
from http_gateway.page.cell import WatchedCell
from sax.activity import SERVED_PHASES, ServedPhase
from sax.auth.acl import caller
from sax.errors import PermissionDenied
from sax.flags.last_lines import LogLine, last_lines

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
