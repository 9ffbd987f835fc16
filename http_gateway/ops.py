"""Routes for operators and probes: /, /healthz, /readyz, /health, /ping, /version, /metrics.

/healthz reports on this process; /readyz on whether a request would find a model. So do vLLM's
/health and /ping, without a body: vLLM answers them once its model is loaded, and what asks for
them (scripts that wait for a server, Vertex AI, SageMaker) sends requests next. A probe that
restarts the process belongs on /healthz.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import NotRequired, TypedDict

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from http_gateway.catalog import Catalog
from http_gateway.metrics import GatewayMetrics
from http_gateway.openapi import OpenAiError, SaxmlError, described_later, operation
from http_gateway.page.routes import asks_for_page, page_reply
from sax.auth.acl import caller
from sax.distribution import version
from sax.errors import SaxError
from sax.types import PublishedModel, ServableStatus


class Greeting(TypedDict):
    message: str


class Liveness(TypedDict):
    status: str


class Readiness(TypedDict):
    """Ready models, or the reasons that none is; names only for those who may see them."""

    status: str
    admin: NotRequired[str]
    models: NotRequired[list[str] | dict[str, list[str]]]


class SaxVersion(TypedDict):
    version: str


_told = partial(operation, errors=SaxmlError, statuses=(401, 500))


_VARY = {"vary": "accept"}
_METRICS = _told({"type": "string"}, media_type="text/plain")
_READYZ = _told(Readiness)
_READYZ["responses"][503] = described_later(
    lambda: _READYZ["responses"][200] | {"description": "Not ready."}
)
_HEALTH = _told(None, errors=OpenAiError)
_HEALTH["responses"][503] = {"description": "Not ready."}


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
        add = router.add_api_route
        greeting = _told(None)
        if self._generation == 2:
            greeting = _told(Greeting, others={"text/html": {"type": "string"}})
        add("/", self.hello, methods=["GET"], **greeting)
        for path, probe, told in (
            ("/healthz", self.healthz, _told(Liveness)),
            ("/readyz", self.readyz, _READYZ),
            ("/health", self.health, _HEALTH),
            ("/ping", self.health, _HEALTH),
        ):
            add(path, probe, methods=["GET"], **told)
        add("/ping", self.health, methods=["POST"], **_HEALTH)
        add("/version", self.version, methods=["GET"], **_told(SaxVersion, errors=OpenAiError))
        add("/metrics", self.metrics, methods=["GET"], **_METRICS)
        return router

    async def hello(self, request: Request) -> Response:
        """Saxml's greeting; for browsers, which ask for text/html, a page to chat on."""
        if asks_for_page(request.scope):
            return page_reply(request)
        text = json.dumps({"message": "HTTP Server for SAX Client"}, indent=4)
        if self._generation == 1:
            return Response(text + "\n", headers=_VARY)
        return Response(text, media_type="application/json", headers=_VARY)

    async def healthz(self) -> Response:
        """200 while this process answers."""
        return JSONResponse({"status": "alive"})

    async def readyz(self) -> Response:
        """200 when a model has a ready replica or is scaled to zero (requests are then held until
        a replica is ready); else 503 with the reasons.

        While the admin is unreachable the last known answer stands: requests do not pass through
        it.
        """
        failure = await self._refreshed()
        models = self._catalog.models
        ready = _ready(models)
        if self._closed and not caller().known:
            status = 200 if ready else 503
            return JSONResponse({"status": "ready" if ready else "not ready"}, status)
        if ready:
            return JSONResponse({"status": "ready", "models": ready, "admin": failure or "ok"})
        reasons = {model.spec.model_id: _reasons(model) for model in models}
        body = {"status": "not ready", "admin": failure or "ok", "models": reasons}
        return JSONResponse(body, 503, {"retry-after": "1"})

    async def health(self) -> Response:
        """200 when a request would find a model, else 503: as /readyz, without a body."""
        await self._refreshed()
        if _ready(self._catalog.models):
            return Response()
        return Response(status_code=503, headers={"retry-after": "1"})

    async def version(self) -> Response:
        """Return the version of sax."""
        return JSONResponse({"version": version()})

    async def _refreshed(self) -> str | None:
        """Refresh the catalog; return the text of an error, which the last known list outlives."""
        try:
            await self._catalog.refresh()
        except SaxError as error:
            return error.text
        return None

    async def metrics(self) -> Response:
        """Metrics in Prometheus text format."""
        text = await asyncio.to_thread(self._metrics.expose, self._catalog.names)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def _ready(models: Sequence[PublishedModel]) -> list[str]:
    return [model.spec.model_id for model in models if _would_answer(model)]


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
