"""Everything the routes of every API share: the cell, its catalog, limits and metrics."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request

from http_gateway.catalog import Catalog
from http_gateway.cell_client import CellClient
from http_gateway.config import GatewayConfig
from http_gateway.envelope import route_name
from http_gateway.metrics import GatewayMetrics
from http_gateway.sse import while_connected
from sax.errors import Cancelled

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    client: CellClient
    catalog: Catalog
    config: GatewayConfig
    metrics: GatewayMetrics

    async def run(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Run a call to the cell; if the client disconnects first, cancel it and count that."""
        try:
            return await while_connected(request.receive, work)
        except Cancelled:
            self.metrics.disconnects.labels(route_name(request.scope)).inc()
            raise
