"""Ollama's routes of models: lists and details. Changes are refused: operators publish models."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.ollama.bodies import SHOW
from http_gateway.ollama.capabilities import capabilities_of
from http_gateway.ollama.listing import listed, running, shown
from http_gateway.ollama.names import untagged
from http_gateway.ollama.reply_types import OllamaModelInfo, OllamaModels, OllamaVersion
from http_gateway.ollama.schema import OllamaShow
from http_gateway.openapi import ALWAYS, JSON, WITH_MODEL, OllamaError, operation
from sax.errors import UnsupportedParameter
from sax.fields.field import RequestRoute

_told = partial(operation, errors=OllamaError)
_LIST, _VERSION = _told(OllamaModels), _told(OllamaVersion)
_SHOW = _told(OllamaModelInfo, statuses=WITH_MODEL, body=SHOW)
_REFUSED = _told(statuses=(*ALWAYS, 400))
del _REFUSED["responses"][200]

# Path -> method, and what to do instead
REFUSALS = {
    "/pull": ("POST", "publish the model under a name: sax publish NAME auto CHECKPOINT"),
    "/push": ("POST", "sax convert writes a checkpoint, which any tool can upload"),
    "/create": ("POST", "publish it with overrides: sax publish NAME auto CHECKPOINT KEY=VALUE"),
    "/copy": ("POST", "publish it under its second name, too: sax publish NAME auto CHECKPOINT"),
    "/delete": ("DELETE", "unpublish the model: sax unpublish NAME"),
}


class OllamaModelRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api", tags=["ollama"])
        add = router.add_api_route
        add("/tags", self.tags, methods=["GET"], **_LIST)
        add("/ps", self.running, methods=["GET"], **_LIST)
        add("/show", self.show, methods=["POST"], **_SHOW)
        add("/version", self.version, methods=["GET"], **_VERSION)
        for path, (method, _) in REFUSALS.items():
            add(path, self.refuse, methods=[method], status_code=400, **_REFUSED)
        return router

    async def tags(self) -> Response:
        """List every published model that the caller's key may use."""
        return _json({"models": listed(await self._backend.catalog.refresh())})

    async def running(self) -> Response:
        """List the models that have a ready replica."""
        return _json({"models": running(await self._backend.catalog.refresh())})

    async def show(self, request: Request) -> Response:
        """Return one model: where it comes from and what it can do."""
        raw = await read_body(request, RequestRoute.OLLAMA_SHOW)
        name = OllamaShow.model_validate_json(raw).asked
        client = self._backend.client
        model = await client.list(await self._backend.catalog.resolve(untagged(name)))
        work = capabilities_of(client, model, self._backend.limit_s(request))
        context, capabilities = await self._backend.run(request, work)
        return _json(shown(model, context, capabilities))

    async def version(self) -> Response:
        """Return the version of sax."""
        return _json({"version": version("sax")})

    async def refuse(self, request: Request) -> Response:
        """Refuse a change of the cell's models, with the command that makes it."""
        path = request.url.path
        _, instead = REFUSALS[path.removeprefix("/api")]
        raise UnsupportedParameter(f"{path} is not supported: {instead}")


def _json(reply: object) -> Response:
    return Response(msgspec.json.encode(reply), media_type=JSON)
