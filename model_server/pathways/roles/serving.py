"""A listening proxy server: the gRPC service over a front, until it is told to stop."""

from __future__ import annotations

import ssl

from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.service import service_of


class ListeningProxy:
    """Belongs to the event loop."""

    def __init__(self, front: Front) -> None:
        self._server = GrpcServer(service_of(front))

    async def start(self, address: str, tls: ssl.SSLContext | None) -> int:
        """Listen and return the port. Raises OSError for a taken port."""
        return await self._server.start(address, tls)

    async def stop(self) -> None:
        """End all sessions."""
        await self._server.stop()
