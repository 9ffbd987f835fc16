"""The status page of a cell on HTTP: what is wanted, what is seen, and why they differ.

`/` is one static page that reads `/status.json` each second and writes it into text nodes only, so
nothing that a user or a server names can become markup. Reads the cell; changes nothing.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator, Mapping
from importlib import resources
from typing import Any

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from admin_server.cell import Cell
from admin_server.ledger import Entry
from admin_server.metrics import registry_of
from admin_server.state import model_of
from sax.errors import InvalidRequest
from sax.types import JoinedServer, Progress, PublishedModel, ReplicaStatus, ServableInfo

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


def build_app(cell: Cell, clock: Callable[[], float]) -> Starlette:
    """The pages of one cell."""
    page = resources.files(__package__ or "admin_server").joinpath("status_page.html").read_text()
    registry = registry_of(cell)

    async def index(request: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    async def status(request: Request) -> Response:
        return JSONResponse(describe(cell, clock()), headers={"Cache-Control": "no-store"})

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/status.json", status),
            Route("/healthz", healthz),
            Route("/metrics", metrics),
        ]
    )


class StatusServer(uvicorn.Server):
    """uvicorn beside the gRPC server, on the same event loop."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        """Binds at once. Raises InvalidRequest if the port cannot be had."""
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
        """Where it listens."""
        return self._socket.getsockname()[1]

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """The signals are the process's, not this page's."""
        yield

    async def run_until_stopped(self) -> None:
        """Serve until `stop`."""
        await self.serve([self._socket])

    def stop(self) -> None:
        """End after the answers under way."""
        self.should_exit = True


def describe(cell: Cell, now: float) -> dict[str, Any]:
    """All that the page shows, as JSON values."""
    troubles = cell.troubles()
    return {
        "cell": cell.ledger.state.cell,
        "admin_server_id": cell.id,
        "now_s": now,
        "sequence": cell.ledger.sequence,
        "store_trouble": cell.ledger.store_trouble,
        "models": [_model(model) for model in cell.models()],
        "servers": [_server(server, troubles, now) for server in cell.servers()],
        "records": [_record(entry) for entry in reversed(cell.ledger.recent)],
    }


def _model(model: PublishedModel) -> dict[str, Any]:
    spec = model.spec
    return {
        "model": spec.model_id,
        "model_path": spec.model_path,
        "checkpoint": spec.checkpoint,
        "overrides": dict(spec.overrides),
        "version": spec.version,
        "wanted_replicas": spec.replicas,
        "ready_replicas": model.ready_replicas,
        "replicas": [_replica(replica) for replica in model.replicas],
    }


def _replica(replica: ReplicaStatus) -> dict[str, Any]:
    return {
        "address": replica.address,
        "status": replica.status,
        "reason": replica.reason,
        "progress": _progress(replica.progress),
    }


def _server(server: JoinedServer, troubles: Mapping[str, str], now: float) -> dict[str, Any]:
    return {
        "address": server.info.address,
        "data_address": server.info.data_address,
        "chip_type": server.info.chip_type,
        "chip_topology": server.info.chip_topology,
        "model_paths": list(server.info.model_paths),
        "tags": list(server.info.tags),
        "incarnation": server.info.incarnation,
        "memory_used": server.memory_used,
        "memory_total": server.info.memory_total,
        "seen_s_ago": round(max(0.0, now - server.last_seen_s), 1),
        "trouble": troubles.get(server.info.address, ""),
        "servables": [_servable(servable) for servable in server.servables],
    }


def _servable(servable: ServableInfo) -> dict[str, Any]:
    return {
        "model": servable.model_id,
        "status": servable.status,
        "reason": servable.reason,
        "memory": servable.memory,
        "progress": _progress(servable.progress),
    }


def _progress(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {
        "phase": progress.phase,
        "done": progress.done,
        "total": progress.total,
        "unit": progress.unit,
    }


def _record(entry: Entry) -> dict[str, Any]:
    return {
        "sequence": entry.sequence,
        "kind": type(entry.record).__name__.lower(),
        "model": model_of(entry.record),
        "at_s": entry.record.at_s,
    }


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
