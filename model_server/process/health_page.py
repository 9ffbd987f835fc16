"""HTTP endpoints of a model server: /healthz, /readyz, /metrics, and /memory for people.

Every host of a replica serves them, from before it has met the others until it exits, so that a
cluster can tell a waiting host from a stuck one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from sax.auth.web_pages import WebRules
from sax.format import shortened

logger = logging.getLogger(__name__)

STUCK_S = 60.0  # no correct callback takes this long: loads and compiles run on other threads
_TICK_S = 1.0
_REQUEST_S = 10.0  # a client that sends nothing for this long is let go, and its thread with it
_CLOSE_S = 0.1  # how soon its thread sees that the page is closed


class LoopWatch:
    """Start it on the event loop; call `trouble` from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved_at_s = clock()
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Call on the loop to watch."""
        self._moved_at_s = self._clock()  # may have been created long ago
        self._ticking = asyncio.create_task(self._tick())

    def stop(self) -> None:
        """Call when the loop is about to end."""
        if self._ticking is not None:
            self._ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self._moved_at_s = self._clock()
            await asyncio.sleep(_TICK_S)

    def trouble(self) -> str:
        """Describe the problem; "" while the loop moves."""
        still_s = self._clock() - self._moved_at_s
        if still_s < STUCK_S:
            return ""
        return f"the event loop has not moved for {still_s:.0f} s: this process must be restarted"


# The admin learns of a server at once and assigns models within a second or two.
NOTHING_CAME_S = 10.0


def why_not_ready(
    *, joined_for_s: float | None, loading: Collection[str], loaded: Collection[str]
) -> str:
    """Return why the server is not ready, or "". `joined_for_s` is None before the first join."""
    if joined_for_s is None:
        return "not joined to an admin server"
    if loading:
        return f"loading {', '.join(sorted(loading))}"
    if not loaded and joined_for_s < NOTHING_CAME_S:
        return "joined just now: waiting for a model to load"
    return ""


Environ = dict[str, object]
StartResponse = Callable[..., object]
_TEXT = "text/plain; charset=utf-8"


class _PageServer(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a scraper that hangs must not keep the process

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # WSGIServer's own does a DNS look-up
        self.server_name, self.server_port = self.server_address[:2]  # pyright: ignore
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log bugs only: a client may be slow or go away at any time."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]


class _ServerOn6(_PageServer):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a probe every few seconds is noise."""


class HealthPage:
    """Health endpoints, answered from threads of their own."""

    def __init__(self) -> None:
        self.trouble: Callable[[], str] = lambda: ""  # why a restart is needed; "": healthy
        self.waiting: Callable[[], str] = lambda: "starting"  # why not ready; "": ready
        self.memory: Callable[[], str] = lambda: "starting"  # the plan, as a table
        self._metrics: Callable[..., Iterable[bytes]] | None = None
        self._http: tuple[WSGIServer, threading.Thread] | None = None
        self._rules = WebRules(host="", remedy="")

    @property
    def port(self) -> int:
        """Port served; 0 if none."""
        return self._http[0].server_port if self._http else 0

    def show(self, registry: CollectorRegistry) -> None:
        """Serve this registry as /metrics from now on."""
        self._metrics = make_wsgi_app(registry)

    def serve(self, host: str, port: int, *others: int) -> None:
        """Answer on background threads at the first port that is free; 0: any.

        Raises OSError if none is.
        """
        kind = _ServerOn6 if ":" in host else _PageServer
        self._rules = WebRules(host=host, remedy="start the server with another --host")
        try:
            server = make_server(host.strip("[]"), port, self._answer, kind, _Quiet)
        except OSError as exc:
            told = f"cannot listen on {host}:{port} (--metrics_port): {exc}"
            if not others:
                raise OSError(told) from exc
            logger.warning("%s; health and metrics are at another port", told)
            return self.serve(host, *others)
        thread = threading.Thread(
            target=server.serve_forever, args=(_CLOSE_S,), name="health", daemon=True
        )
        self._http = (server, thread)
        thread.start()
        return None

    def close(self) -> None:
        if self._http is not None:
            server, thread = self._http
            server.shutdown()
            server.server_close()
            thread.join()
            self._http = None

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ.get("REQUEST_METHOD") != "HEAD":
            return self._told(environ, start_response)
        heads: list[tuple[str, list[tuple[str, str]]]] = []
        asked = {**environ, "REQUEST_METHOD": "GET"}
        told = self._told(asked, lambda status, headers, *_: heads.append((status, headers)))
        length = ("Content-Length", str(len(b"".join(told))))
        for status, headers in heads:
            start_response(status, [*headers, length])
        return []

    def _told(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path, host = environ.get("PATH_INFO"), str(environ.get("HTTP_HOST", ""))
        if (error := self._rules.refusal("GET", {"host": host})) is not None:
            start_response("403 Forbidden", [("Content-Type", _TEXT)])
            return [f"{error.text}\n".encode()]
        if path == "/metrics" and self._metrics is not None:
            return self._metrics(environ, start_response)
        status, text = self._say(str(path))
        start_response(status, [("Content-Type", _TEXT), ("Cache-Control", "no-store")])
        return [f"{text}\n".encode()]

    def _say(self, path: str) -> tuple[str, str]:
        if path == "/healthz":
            return _status(self.trouble(), "alive")
        if path == "/readyz":
            return _status(self.trouble() or self.waiting(), "ready")
        if path == "/memory":
            return "200 OK", self.memory()
        if path == "/metrics":
            return "503 Service Unavailable", "starting: there are no metrics yet"
        return "404 Not Found", f"no {shortened(path)} here: /healthz, /readyz, /metrics, /memory"


def _status(problem: str, well: str) -> tuple[str, str]:
    return ("503 Service Unavailable", problem) if problem else ("200 OK", well)
