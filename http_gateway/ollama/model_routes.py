"""Ollama's routes of models: lists and details."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TypedDict

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.cell_client import CellClient
from http_gateway.ollama.bodies import SHOW
from http_gateway.ollama.names import tagged, untagged
from http_gateway.ollama.reply import (
    OllamaDetails,
    OllamaModel,
    OllamaModelInfo,
    OllamaModels,
    OllamaVersion,
)
from http_gateway.ollama.schema import OllamaShow
from http_gateway.openapi import JSON, WITH_MODEL, OllamaError, operation
from sax.chat import Content
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.types import PLAIN_CHAT, ChatOptions, Image, Message, ModelSpec, PublishedModel, Tool

_NEVER = "9999-12-31T23:59:59Z"  # a model stays loaded until it is unpublished

_PROBES = {
    "tools": ChatOptions(tools=(Tool("probe"),)),
    "thinking": ChatOptions(chat_template_kwargs=json.dumps({"enable_thinking": True})),
}
# A white pixel, as PNG
_DOT = Image(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAA"
        "AACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
    )
)


class _Context(TypedDict, total=False):
    context_length: int


_METHODS = {"lm.generate": "completion", "lm.embed": "embedding"}

_told = partial(operation, errors=OllamaError)
_LIST, _VERSION = _told(OllamaModels), _told(OllamaVersion)
_SHOW = _told(OllamaModelInfo, statuses=WITH_MODEL, body=SHOW)
# Clients want one that knows what they ask for: VS Code's at least 0.6.4, others 0.9 for `think`.
# Log-probabilities came last of what the gateway answers, with this one.
OLLAMA_VERSION = "0.12.11"


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
        """Return the version of Ollama whose API this is, and that of sax."""
        return _json({"version": OLLAMA_VERSION, "server": f"sax {version('sax')}"})


def _json(reply: object) -> Response:
    return Response(msgspec.json.encode(reply), media_type=JSON)


async def capabilities_of(
    client: CellClient, model: PublishedModel, limit_s: float
) -> tuple[int | None, Sequence[str]]:
    """Return the context length and the capabilities of a model.

    None, and what its methods tell: no replica is ready. Raises SaxError.
    """
    told = [name for method, name in _METHODS.items() if method in model.methods]
    if not model.ready_replicas or "completion" not in told:
        return None, told
    _, context = await client.tokenize(model.spec.model_id, "Hi", limit_s)
    for name, options in _PROBES.items():
        if await _takes(client, model.spec.model_id, "Hi", options, limit_s):
            told.append(name)
    if await _takes(client, model.spec.model_id, (_DOT, "Hi"), PLAIN_CHAT, limit_s):
        told.append("vision")
    return context, told


async def _takes(
    client: CellClient, model_id: str, content: Content, options: ChatOptions, limit_s: float
) -> bool:
    try:
        await client.tokenize(model_id, (Message("user", content),), limit_s, chat=options)
    except InvalidRequest:
        return False
    return True


def listed(models: Sequence[PublishedModel]) -> list[OllamaModel]:
    return [
        {
            "name": name,
            "model": name,
            "modified_at": _time(model),
            "size": 0,  # the cell does not record it
            "digest": model.spec.version,
            "details": _details(model.spec),
        }
        for name, model in zip(tagged(models), models, strict=True)
    ]


def running(models: Sequence[PublishedModel]) -> list[OllamaModel]:
    """Return those with a ready replica."""
    return [
        {**entry, "expires_at": _NEVER, "size_vram": 0, **_context(model)}
        for entry, model in zip(listed(models), models, strict=True)
        if model.ready_replicas
    ]


def shown(
    model: PublishedModel, context: int | None, capabilities: Sequence[str]
) -> OllamaModelInfo:
    """context: tokens of prompt and answer at most; None: not known."""
    spec = model.spec
    info: dict[str, object] = {
        "general.architecture": spec.model_path,
        "general.basename": spec.model_id.rpartition("/")[2],
    }
    if context is not None:
        info[f"{spec.model_path}.context_length"] = context
    return {
        "modelfile": f"FROM {spec.checkpoint}",
        "parameters": "",  # a publication has none that requests would not override
        "template": "",  # the model server has it
        "details": _details(spec),
        "model_info": info,
        "capabilities": [*capabilities],
        "modified_at": _time(model),
    }


def _time(model: PublishedModel) -> str:
    """Return when the current version was published, as RFC 3339 has it."""
    return datetime.fromtimestamp(model.published_at_s, UTC).isoformat().replace("+00:00", "Z")


def _context(model: PublishedModel) -> _Context:
    return {"context_length": model.max_context} if model.max_context else {}


def _details(spec: ModelSpec) -> OllamaDetails:
    return {
        "parent_model": "",
        "format": "gguf" if spec.checkpoint.endswith(".gguf") else "",
        "family": spec.model_path,
        "families": [spec.model_path],
        "parameter_size": "",
        "quantization_level": json.loads(spec.overrides.get("QUANTIZE", '""')) or "",
    }
