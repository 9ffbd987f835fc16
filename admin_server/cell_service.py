"""The Cell service on gRPC: what an admin server offers beyond Saxml's Admin service.

Knows the wire; decides nothing.
"""

from __future__ import annotations

from typing import Any

from admin_server.cell import Cell
from sax.proto import cell_pb2, cell_pb2_grpc

SERVICE = "sax.Cell"
Context = Any  # grpc.aio.ServicerContext is generic in the stubs only


class CellService(cell_pb2_grpc.CellServicer):
    """One line of meaning per method."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    async def Demand(
        self, request: cell_pb2.DemandRequest, context: Context
    ) -> cell_pb2.DemandResponse:
        """A client holds requests for want of a replica."""
        told = self._cell.demand(request.model_id, request.waiting, request.caller)
        return cell_pb2.DemandResponse(starting=told.starting, reason=told.reason)
