"""A gRPC server: listens, and keeps the connections that are open. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from model_server.pathways.http2.connection import GrpcConnection, OpenCall
from model_server.pathways.link.connection import listen


class GrpcServer:
    """Serves methods by path, as in "/package.Service/Method"."""

    def __init__(self, methods: Mapping[str, OpenCall]) -> None:
        self._methods = methods
        self._connections: set[GrpcConnection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, address: str, tls: ssl.SSLContext | None) -> int:
        """Listen at host:port (0: any) and return the port. Raises OSError."""
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        self._server, port = await listen(address, self._connection, tls)
        return port

    async def stop(self) -> None:
        """End all calls and connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close("this server stops")
        self._server = None

    def _connection(self) -> GrpcConnection:
        return GrpcConnection(self._methods, self._connections.add, self._connections.discard)
