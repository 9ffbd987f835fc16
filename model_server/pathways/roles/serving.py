"""A listening proxy server: the gRPC service over a front, until it is told to stop."""

from __future__ import annotations

import grpc.aio

from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.service import OPTIONS, ProxyService
from sax.auth.security import Security

_GRACE_S = 1.0


class ListeningProxy:
    """One gRPC server. Belongs to the event loop."""

    def __init__(self, front: Front) -> None:
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((ProxyService(front).handler(),))

    async def start(self, address: str, security: Security) -> int:
        """Listen and return the port. Raises OSError for a taken port, InvalidRequest."""
        try:
            port = security.listen(self._server, address)
        except RuntimeError as exc:
            raise OSError(f"cannot listen on {address}: {exc}") from exc
        await self._server.start()
        return port

    async def stop(self) -> None:
        """End all sessions."""
        await self._server.stop(_GRACE_S)
