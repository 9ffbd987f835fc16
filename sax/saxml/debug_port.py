"""Saxml's StartDebugPort: a page about this process."""

from __future__ import annotations

from sax.errors import InvalidRequest

_HOST = "127.0.0.1"


def StartDebugPort(port: int) -> None:
    """Serve this process's metrics at http://127.0.0.1:port/metrics, for Prometheus.

    Saxml serves its internal debugging pages there, on every interface. Raises InvalidRequest if
    the port is taken or is none.
    """
    from prometheus_client import start_http_server

    try:
        start_http_server(port, _HOST)
    except (OSError, OverflowError) as exc:
        raise InvalidRequest(
            f"port {port} cannot be used ({exc}): choose another", param="port"
        ) from exc
