"""HTTP endpoints of a model server for probes and scrapers: /healthz, /readyz and /metrics.

Every host of a replica serves them, from before it has met the others until it exits, so that a
cluster can tell a waiting host from a stuck one.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

Environ = dict[str, object]
StartResponse = Callable[..., object]
_TEXT = "text/plain; charset=utf-8"


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a scraper that hangs must not keep the process

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # WSGIServer's own does a DNS look-up
        self.server_name, self.server_port = self.server_address[:2]  # pyright: ignore
        self.setup_environ()


class _ServerOn6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a probe every few seconds is noise."""


class HealthPage:
    """Health endpoints, answered from threads of their own."""

    def __init__(self) -> None:
        self.trouble: Callable[[], str] = lambda: ""  # why a restart is needed; "": healthy
        self.waiting: Callable[[], str] = lambda: "starting"  # why not ready; "": ready
        self._metrics: Callable[..., Iterable[bytes]] | None = None
        self._http: tuple[WSGIServer, threading.Thread] | None = None

    @property
    def port(self) -> int:
        """Port served; 0 if none."""
        return self._http[0].server_port if self._http else 0

    def show(self, registry: CollectorRegistry) -> None:
        """Serve this registry as /metrics from now on."""
        self._metrics = make_wsgi_app(registry)

    def serve(self, host: str, port: int) -> None:
        """Answer on background threads; port 0 picks a free one. Raises OSError if it is taken."""
        kind = _ServerOn6 if ":" in host else _Server
        try:
            server = make_server(host.strip("[]"), port, self._answer, kind, _Quiet)
        except OSError as exc:
            raise OSError(f"cannot listen on {host}:{port} (--metrics_port): {exc}") from exc
        thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
        self._http = (server, thread)
        thread.start()

    def close(self) -> None:
        if self._http is not None:
            server, thread = self._http
            server.shutdown()
            server.server_close()
            thread.join()
            self._http = None

    def _answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
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
        if path == "/metrics":
            return "503 Service Unavailable", "starting: there are no metrics yet"
        return "404 Not Found", f"no {path} here: /healthz, /readyz, /metrics"


def _status(problem: str, well: str) -> tuple[str, str]:
    return ("503 Service Unavailable", problem) if problem else ("200 OK", well)
