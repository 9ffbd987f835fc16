"""The status page of a cell on HTTP: what is wanted, what is seen, and why they differ.

`/` is one static page, its files under /page/. It polls `/status.json` each second and writes it
into text nodes only, so no name chosen by a user or server can become markup. Read-only.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any

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
from admin_server.api.status import describe
from admin_server.api.status_view import parse_view
from admin_server.leadership.role import AdminRole
from sax.auth.web_pages import WebRules
from sax.errors import InvalidRequest, meaning
from sax.look.page_file import PAGE_HEADERS, page_files

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
        headers = {**PAGE_HEADERS, "etag": found.tag}
        if found.is_known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)

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
