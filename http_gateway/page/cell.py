"""/cell: the cell as its page shows it, fetched at most once a second for all viewers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from http_gateway.cell_client import CellClient
from http_gateway.openapi import JSON, operation
from sax.auth.acl import caller
from sax.auth.credentials import own_account, told_to_user
from sax.auth.key_limits import KeyLimits
from sax.errors import AdminUnavailable, SaxError, UnsupportedParameter
from sax.names import ModelId
from sax.types import (
    JoinedServer,
    Overview,
    Progress,
    PublishedModel,
    ReplicaStatus,
    Rights,
    ServableInfo,
)

_MOST_MODELS = 1000
_MOST_SERVERS = 1000
_MOST_REPLICAS = 100  # of one model
_FRESH_S = 1.0
_TIMEOUT_S = 5.0
_FRESH = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class ShownProgress(TypedDict):
    phase: str
    done: int
    total: int
    unit: str


class ShownReplica(TypedDict):
    """One wanted replica; `address` is empty while no server was found for it."""

    address: str
    status: str
    reason: str
    note: str
    progress: ShownProgress | None


class ShownModel(TypedDict):
    """One published model. `may_change`: null where the admin server does not tell."""

    model: str
    model_path: str
    checkpoint: str
    version: str
    methods: list[str]
    wanted_replicas: int
    ready_replicas: int
    scaling_reason: str
    may_change: bool | None
    replicas: list[ShownReplica]
    replicas_hidden: int


class ShownActivity(TypedDict):
    """Load of a model on one server. The last seven are totals since it was loaded there: the
    difference of two, by the time between them, is a rate. All 0: the server does not tell."""

    slots: int
    slots_used: int
    pages: int
    pages_used: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    answers_begun: int
    first_token_s: float
    answers_timed: int
    token_interval_s: float


class ShownServable(TypedDict):
    """One model on one server, as the server reports it."""

    model: str
    status: str
    reason: str
    memory: int
    kernels: str
    queued: int
    running: int
    arrived: int
    progress: ShownProgress | None
    activity: ShownActivity


class ShownServer(TypedDict):
    """One model server. Rates and latency are those of the last minute."""

    address: str
    chip_type: str
    chip_topology: str
    devices: int
    tags: list[str]
    memory_used: int
    memory_total: int
    seen_s_ago: float
    dormant: bool
    pending_requests: int
    successes_per_second: float
    errors_per_second: float
    mean_latency_s: float
    servables: list[ShownServable]


class ShownCell(TypedDict):
    """A cell as one caller sees it. `admin`: "ok", or why the reply is older than `now_s`.
    `may_publish`: null where the admin server does not tell."""

    cell: str
    now_s: float
    seen_at_s: float
    admin: str
    may_publish: bool | None
    models: list[ShownModel]
    models_hidden: int
    servers: list[ShownServer]
    servers_hidden: int


def shown_cell(
    sight: CellSight, rights: Rights | None, limits: KeyLimits, now_s: float
) -> ShownCell:
    """Return what a caller with these rights and limits may see of the cell."""
    overview = sight.overview
    models = [model for model in overview.models if limits.allows(model.spec.model_id)]
    servers = overview.servers
    return {
        "cell": _cell_of(overview.models, servers),
        "now_s": now_s,
        "seen_at_s": sight.at_s,
        "admin": sight.failure or "ok",
        "may_publish": None if rights is None else rights.publish,
        "models": [_model(model, rights) for model in models[:_MOST_MODELS]],
        "models_hidden": max(0, len(models) - _MOST_MODELS),
        "servers": [_server(each, limits, sight.at_s) for each in servers[:_MOST_SERVERS]],
        "servers_hidden": max(0, len(servers) - _MOST_SERVERS),
    }


def _cell_of(models: Iterable[PublishedModel], servers: Iterable[JoinedServer]) -> str:
    """Return the name of the cell by that of a model, "" in a cell that has none."""
    named = (model.spec.model_id for model in models)
    held = (one.model_id for server in servers for one in server.servables)
    model_id = next(named, "") or next(held, "")
    return str(ModelId.parse(model_id).cell_id) if model_id else ""


def _model(model: PublishedModel, rights: Rights | None) -> ShownModel:
    spec = model.spec
    return {
        "model": spec.model_id,
        "model_path": spec.model_path,
        "checkpoint": spec.checkpoint,
        "version": spec.version,
        "methods": list(model.methods),
        "wanted_replicas": model.wanted_replicas,
        "ready_replicas": model.ready_replicas,
        "scaling_reason": model.scaling_reason,
        "may_change": None if rights is None else rights.may_change(spec.model_id),
        "replicas": _replicas(model.replicas[:_MOST_REPLICAS]),
        "replicas_hidden": max(0, len(model.replicas) - _MOST_REPLICAS),
    }


def _replicas(replicas: Sequence[ReplicaStatus]) -> list[ShownReplica]:
    return [
        {
            "address": replica.address,
            "status": replica.status.value,
            "reason": replica.reason,
            "note": replica.note,
            "progress": _progress(replica.progress),
        }
        for replica in replicas
    ]


def _server(server: JoinedServer, limits: KeyLimits, now_s: float) -> ShownServer:
    info, traffic = server.info, server.traffic
    return {
        "address": info.address,
        "chip_type": info.chip_type,
        "chip_topology": info.chip_topology,
        "devices": info.devices,
        "tags": list(info.tags),
        "memory_used": server.memory_used,
        "memory_total": info.memory_total,
        "seen_s_ago": round(max(0.0, now_s - server.last_seen_s), 1),
        "dormant": server.dormant,
        "pending_requests": traffic.pending,
        "successes_per_second": round(traffic.successes_per_second, 3),
        "errors_per_second": round(traffic.errors_per_second, 3),
        "mean_latency_s": round(traffic.mean_latency_s, 4),
        "servables": [_servable(one) for one in server.servables if limits.allows(one.model_id)],
    }


def _servable(servable: ServableInfo) -> ShownServable:
    activity: ShownActivity = asdict(servable.activity)  # pyright: ignore[reportAssignmentType]
    return {
        "model": servable.model_id,
        "status": servable.status.value,
        "reason": servable.reason,
        "memory": servable.memory,
        "kernels": servable.kernels,
        "queued": servable.queued,
        "running": servable.running,
        "arrived": servable.arrived,
        "progress": _progress(servable.progress),
        "activity": activity,
    }


def _progress(progress: Progress | None) -> ShownProgress | None:
    if progress is None:
        return None
    return {
        "phase": progress.phase,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
    }


@dataclass(frozen=True, slots=True)
class CellSight:
    """One look at the cell; `failure` is why there is no newer one, "" if it is fresh."""

    overview: Overview
    at_s: float  # seconds since the epoch
    failure: str = ""


class WatchedCell:
    def __init__(
        self, client: CellClient, clock: Callable[[], float] = time.time, fresh_s: float = _FRESH_S
    ) -> None:
        self._client = client
        self._clock = clock
        self._fresh_s = fresh_s
        self._seen: CellSight | None = None
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> CellSight:
        """Return the cell as it is, or as it was when its admin server last answered.

        Raises SaxError if it never answered.
        """
        if self._seen is not None and 0 <= self._clock() - self._seen.at_s < self._fresh_s:
            return self._seen
        try:
            await asyncio.shield(self._start())
        except SaxError as error:
            told = told_to_user(error)
            if self._seen is None:
                raise told from error
            return CellSight(self._seen.overview, self._seen.at_s, told.text)
        assert self._seen is not None
        return self._seen

    async def rights(self) -> Rights | None:
        """Return the changes that the caller may make; None if the admin does not tell."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._client.rights()
        except (UnsupportedParameter, AdminUnavailable, TimeoutError):
            return None

    def _start(self) -> asyncio.Task[None]:
        if self._looking is None:
            # Shared by all viewers, so it runs under the gateway's own identity.
            self._looking = asyncio.create_task(self._fetch(), context=own_account())
            self._looking.add_done_callback(_retrieve)
        return self._looking

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._seen = CellSight(await self._client.overview(), self._clock())
        except TimeoutError as error:
            raise AdminUnavailable(
                f"the admin server did not answer within {_TIMEOUT_S:g} s; check that it is running"
            ) from error
        finally:
            self._looking = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a look whose viewers all left, which would be logged otherwise."""
    if not task.cancelled():
        task.exception()


class CellRoutes:
    """/cell: the cell as it is now, for the page and for anyone else who watches it."""

    def __init__(self, watched: WatchedCell) -> None:
        self._watched = watched

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        told = operation(ShownCell, statuses=(401, 500, 503, 504))
        router.add_api_route("/cell", self.cell, methods=["GET"], **told)
        return router

    async def cell(self) -> Response:
        """Describe models, replicas and servers, how busy each is, and what the caller may change.

        Only models that the caller's key may use are listed. While the admin server does not
        answer, the last known state stands, and `admin` says why.
        """
        sight, rights = await asyncio.gather(self._watched.look(), self._watched.rights())
        shown = shown_cell(sight, rights, caller().limits, time.time())
        return Response(msgspec.json.encode(shown), media_type=JSON, headers=_FRESH)
