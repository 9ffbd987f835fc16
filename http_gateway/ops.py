"""Routes for operators and probes: /, /healthz, /readyz, /metrics.

/healthz reports on this process; /readyz on whether a request would find a model.
"""

from __future__ import annotations

import asyncio
import json

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from http_gateway.catalog import Catalog
from http_gateway.metrics import GatewayMetrics
from sax.auth.acl import caller
from sax.errors import SaxError
from sax.types import PublishedModel, ServableStatus


class OpsRoutes:
    def __init__(
        self, catalog: Catalog, metrics: GatewayMetrics, generation: int, *, closed: bool
    ) -> None:
        """`closed`: only authenticated callers may see model names."""
        self._catalog = catalog
        self._metrics = metrics
        self._generation = generation
        self._closed = closed

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        router.add_api_route("/", self.hello, methods=["GET"])
        for path, probe in (("/healthz", self.healthz), ("/readyz", self.readyz)):
            router.add_api_route(path, probe, methods=["GET"])
            router.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
        router.add_api_route("/metrics", self.metrics, methods=["GET"])
        return router

    async def hello(self) -> Response:
        """Saxml's greeting."""
        text = json.dumps({"message": "HTTP Server for SAX Client"}, indent=4)
        if self._generation == 1:
            return Response(text + "\n")
        return Response(text, media_type="application/json")

    async def healthz(self) -> Response:
        """200 while this process answers."""
        return JSONResponse({"status": "alive"})

    async def readyz(self) -> Response:
        """200 when a model has a ready replica or is scaled to zero (requests are then held until
        a replica is ready); else 503 with the reasons.

        While the admin is unreachable the last known answer stands: requests do not pass through
        it.
        """
        failure: str | None = None
        try:
            await self._catalog.refresh()
        except SaxError as error:
            failure = error.text
        models = self._catalog.models
        ready = [model.spec.model_id for model in models if _would_answer(model)]
        if self._closed and not caller().known:
            status = 200 if ready else 503
            return JSONResponse({"status": "ready" if ready else "not ready"}, status)
        if ready:
            return JSONResponse({"status": "ready", "models": ready, "admin": failure or "ok"})
        reasons = {model.spec.model_id: _reasons(model) for model in models}
        body = {"status": "not ready", "admin": failure or "ok", "models": reasons}
        return JSONResponse(body, 503, {"retry-after": "1"})

    async def metrics(self) -> Response:
        """Metrics in Prometheus text format."""
        text = await asyncio.to_thread(self._metrics.expose, self._catalog.names)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def _would_answer(model: PublishedModel) -> bool:
    if model.ready_replicas:
        return True
    # Scaled to zero counts as ready, else the gateway would never get the request that wakes it.
    bounds = model.spec.autoscaling
    if bounds is None or bounds.min_replicas:
        return False
    coming = (each.address and each.status is not ServableStatus.FAILED for each in model.replicas)
    return not model.wanted_replicas or any(coming)


def _reasons(model: PublishedModel) -> list[str]:
    if not model.replicas:
        return [f"{model.wanted_replicas} replicas wanted, none assigned yet"]
    return [
        f"{replica.address or 'unassigned'}: {replica.status.value}"
        + (f": {replica.reason}" if replica.reason else "")
        for replica in model.replicas
    ]
