"""The status page of a cell on HTTP: what is wanted, what is seen, and why they differ.

`/` is one static page, its files under /page/. It polls `/status.json` each second and writes it
into text nodes only, so no name chosen by a user or server can become markup. Read-only.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, TypeVar

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from admin_server.api.metrics import registry_of
from admin_server.cell.cell import Cell
from admin_server.events import CellEvent
from admin_server.leadership import AdminRole
from admin_server.ledger.ledger import event_of
from sax.auth.web_pages import WebRules
from sax.errors import InvalidRequest, meaning
from sax.look.cell_rows import model_row, servable_row, server_row
from sax.look.page_file import page_files
from sax.memory_parts import MemoryParts
from sax.types import Event, JoinedServer, PublishedModel

# Status page data of a cell as JSON values: totals, and one page of each list.
#
# A cell may have thousands of models and servers, and every viewer polls each second: lists are
# filtered and cut here, with problems first. Read-only.

_REPLICAS_SHOWN = 20
_SERVABLES_SHOWN = 20
_RECENT_SHOWN = 20
_EVENTS_SHOWN = 20
_TOTALS = (
    *("models", "models_ready", "wanted_replicas", "ready_replicas"),
    *("servers", "servers_in_trouble", "memory_used", "memory_total"),
)

T = TypeVar("T")


def describe(role: AdminRole, now: float, view: StatusView) -> dict[str, Any]:
    """Everything the page shows; on a follower, only the role and the leader."""
    head = {
        "cell": str(role.cell_id),
        "leading": role.cell is not None,
        "leadership": role.describe(),
        "leader": role.leader,
        "warnings": role.warnings(),
        "now_s": now,
    }
    return {**head, **(_cell(role.cell, now, view) if role.cell is not None else _NOTHING)}


_NOTHING: dict[str, Any] = {
    "store_trouble": "",
    "totals": dict.fromkeys(_TOTALS, 0),
    **{"models_found": 0, "models": [], "servers_found": 0, "servers": []},
    **{"events": [], "happenings": []},
}


def _cell(cell: Cell, now: float, view: StatusView) -> dict[str, Any]:
    models, servers, troubles = cell.models(), cell.servers(), cell.troubles()
    chosen = [m for m in models if not view.models or view.models in _words(m)]
    found = [s for s in servers if not view.servers or view.servers in _server_words(s)]
    # Sorting is stable, and both lists are sorted by name.
    chosen.sort(key=_is_well)
    found.sort(key=lambda server: server.info.address not in troubles)
    return {
        "admin_server_id": cell.id,
        "sequence": cell.ledger.sequence,
        "store_trouble": cell.ledger.store_trouble,
        "totals": _totals(models, servers, troubles),
        "models_found": len(chosen),
        "models": [_model(m) for m in _cut(chosen, view.models_from, view.limit)],
        "servers_found": len(found),
        "servers": [_server(s, troubles, now) for s in _cut(found, view.servers_from, view.limit)],
        "events": [
            _event(event_of(entry)) for entry in islice(reversed(cell.ledger.recent), _EVENTS_SHOWN)
        ],
        "happenings": [_recent_event(e) for e in cell.recent_events.newest(_RECENT_SHOWN)],
    }


def _totals(
    models: Sequence[PublishedModel], servers: Sequence[JoinedServer], troubles: Mapping[str, str]
) -> dict[str, int]:
    return {
        "models": len(models),
        "models_ready": sum(map(_is_well, models)),
        "wanted_replicas": sum(model.wanted for model in models),
        "ready_replicas": sum(model.ready_replicas for model in models),
        "servers": len(servers),
        "servers_in_trouble": len(troubles),
        "memory_used": sum(server.memory_used for server in servers),
        "memory_total": sum(server.info.memory_total for server in servers),
    }


def _is_well(model: PublishedModel) -> bool:
    """True if all wanted replicas are ready, and none is outdated or failing."""
    return model.ready_replicas >= model.wanted and not any(r.reason for r in model.replicas)


def _words(model: PublishedModel) -> str:
    spec, well = model.spec, "ready" if _is_well(model) else "waiting"
    statuses = {replica.status.value for replica in model.replicas}
    return " ".join([spec.model_id, spec.model_path, spec.checkpoint, well, *statuses]).lower()


def _server_words(server: JoinedServer) -> str:
    info = server.info
    held = [servable.model_id for servable in server.servables]
    words = [info.address, info.chip_type, info.chip_topology, *info.tags, *held]
    return " ".join(words).lower()


def _model(model: PublishedModel) -> dict[str, Any]:
    spec, row = model.spec, model_row(model, _REPLICAS_SHOWN, None)
    canary = None
    if spec.canary is not None and row["canary"] is not None:
        canary = {**row["canary"], "overrides": _cut_texts(spec.canary.overrides)}
    return {
        **row,
        "canary": canary,
        "overrides": _cut_texts(spec.overrides),
        "revision": spec.revision,
        "asked_replicas": spec.replicas,
        "wanted_replicas": model.wanted,
        "autoscaling": None if spec.autoscaling is None else asdict(spec.autoscaling),
        "warnings": list(model.warnings),
        "placement": {**asdict(spec.placement), "tags": list(spec.placement.tags)},
    }


def _cut_texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {key: text[:200] for key, text in texts.items()}


def _server(server: JoinedServer, troubles: Mapping[str, str], now: float) -> dict[str, Any]:
    info, held = server.info, server.servables[:_SERVABLES_SHOWN]
    return {
        **server_row(server, now, ()),
        "data_address": info.data_address,
        "debug_address": info.debug_address,
        "model_paths": len(info.model_paths),
        "incarnation": info.incarnation,
        "trouble": troubles.get(info.address, ""),
        "servables": [{**servable_row(one), "memory_parts": _parts(one.parts)} for one in held],
        "servables_hidden": max(0, len(server.servables) - _SERVABLES_SHOWN),
    }


def _parts(parts: MemoryParts) -> dict[str, int] | None:
    return asdict(parts) if parts.total else None


def _event(event: Event) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "at_s": event.at_s,
        "kind": event.kind,
        "model": event.model_id,
        "by": event.by,
        "version": event.version,
        "text": event.text,
    }


def _recent_event(event: CellEvent) -> dict[str, Any]:
    return {
        "number": event.number,
        "at_s": event.at_s,
        "kind": event.kind,
        "text": event.text,
        "server": event.server,
        "model": event.model_id,
    }


def _cut(items: Sequence[T], start: int, limit: int) -> Sequence[T]:
    return items[start : start + limit]


_FRESH = {"Cache-Control": "no-store"}


def health_routes(role: AdminRole, clock: Callable[[], float]) -> list[Route]:
    async def healthz(request: Request) -> Response:
        return JSONResponse(describe_health(role, clock()), headers=_FRESH)

    async def readyz(request: Request) -> Response:
        health = describe_health(role, clock())
        return JSONResponse(health, 200 if health["writes"] == "ok" else 503, headers=_FRESH)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def describe_health(role: AdminRole, now: float) -> dict[str, Any]:
    health, leading, warnings = role.health, role.cell is not None, role.warnings()
    answer: dict[str, Any] = {
        "status": "degraded" if health.failing or warnings else "ok",
        "role": role.describe(),
        "reads": "ok" if leading else "refused",
        "writes": "ok" if leading and not health.failing else "refused",
    }
    if warnings:
        answer["warnings"] = warnings
    if health.since_s is None:
        return answer
    return {**answer, "reason": health.trouble, "for_s": round(max(0.0, now - health.since_s), 1)}


_PACKAGE = "admin_server.api"
_INDEX = "index.html"
_JSON_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def build_app(role: AdminRole, clock: Callable[[], float], host: str = "127.0.0.1") -> Starlette:
    """host: that the page listens on."""
    registry = registry_of(role)

    async def file(request: Request) -> Response:
        found = page_files(_PACKAGE).get(request.path_params.get("name", _INDEX))
        if found is None:
            return Response("the page has no such file", 404, media_type="text/plain")
        return Response(**found.reply(request.headers)._asdict())

    async def status(request: Request) -> Response:
        try:
            view = parse_view(request.query_params)
        except InvalidRequest as exc:
            return JSONResponse({"error": exc.text, "param": exc.param}, 400, _JSON_HEADERS)
        return JSONResponse(describe(role, clock(), view), headers=_JSON_HEADERS)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/", file),
            Route("/page/{name}", file),
            Route("/status.json", status),
            *health_routes(role, clock),
            Route("/metrics", metrics),
        ],
        middleware=[Middleware(LocalNames, host=host)],
    )


class LocalNames:
    """ASGI middleware: no name that a stranger gave this machine leads to the page, which asks for
    no key."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._rules = WebRules(host=host, remedy="start it with another --host")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rules = self._rules.at((scope.get("server") or [None])[0])
        error = rules.refusal(scope["method"], Headers(scope=scope))
        reply = self._app
        if error is not None:
            reply = JSONResponse({"error": error.text}, meaning(error).http, _JSON_HEADERS)
        await reply(scope, receive, send)


class StatusServer(uvicorn.Server):
    """uvicorn beside the gRPC server, on the same event loop."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        """Binds at once. Raises InvalidRequest if the port is unavailable."""
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=2,
            )
        )
        self._socket = _listen(host, port)

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """No-op: signals belong to the process."""
        yield

    async def run_until_stopped(self) -> None:
        await self.serve([self._socket])

    def stop(self) -> None:
        """Stop once the responses in progress are sent."""
        self.should_exit = True


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise InvalidRequest(
            f"the status page cannot listen on {host}:{port} ({exc.strerror}): give another "
            "--status_port, 0 for any free one, or -1 for no status page",
            param="status_port",
        ) from exc
    return listener


_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    models: str = ""  # only models whose name, path, checkpoint or state contain this
    models_from: int = 0
    servers: str = ""  # only servers whose address, chips, tags or models contain this
    servers_from: int = 0
    limit: int = 100


_NUMBERS = {"models_from": 10**9, "servers_from": 10**9, "limit": _MOST}


def parse_view(query: Mapping[str, str]) -> StatusView:
    """Raises InvalidRequest naming the field at fault."""
    values: dict[str, Any] = {}
    for name, text in query.items():
        if name in ("models", "servers"):
            values[name] = text.lower()
        elif name in _NUMBERS:
            values[name] = _number(name, text)
        else:
            known = ", ".join(["models", "servers", *_NUMBERS])
            raise InvalidRequest(f"unknown field {name}: use {known}", param=name)
    return StatusView(**values)


def _number(name: str, text: str) -> int:
    digits = text.isascii() and text.isdigit() and len(text) < 12
    if not digits or int(text) > _NUMBERS[name]:
        raise InvalidRequest(f"{name} is {text[:40]!r}: use 0 to {_NUMBERS[name]}", param=name)
    return int(text)
