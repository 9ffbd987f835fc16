"""Saxml's HTTP routes, generation 1: reproduces the stdlib server of 2023 exactly.

Exact key counts, {"generate_response": ...}, a trailing newline, no Content-Type, and 400 for
every error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.limits import check_allowed
from http_gateway.saxml.described import GENERATION_1, generation_1_body
from http_gateway.saxml.routes import listed, samples
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.table import fields_of
from sax.format import quoted
from sax.scaling import check_replicas

_PUBLISH_KEYS = ("model", "model_path", "checkpoint", "replicas")
_FIELDS = fields_of(RequestRoute.PUBLISH) | fields_of(RequestRoute.GENERATE)
_PUBLISH_HINT = "Provide model, model path, checkpoint, and replica number for "


class SaxmlGeneration1Routes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._client = backend.client

    def router(self) -> APIRouter:
        router = APIRouter(tags=["saxml"])
        add = router.add_api_route
        add("/listcell", self.listcell, methods=["GET"], **GENERATION_1)
        add("/publish", self.publish, methods=["POST"], **_told(*_PUBLISH_KEYS))
        add("/generate", self.generate, methods=["POST"], **_told("model", "query"))
        add("/unpublish", self.unpublish, methods=["POST"], **_told("model"))
        add("/update", self.update, methods=["PUT"], **_told(*_PUBLISH_KEYS))
        return router

    async def listcell(self, request: Request) -> Response:
        """Describe one model."""
        fields = await _fields(request, ("model",), "Provide model for list cell")
        model = _text(fields, "model")
        check_allowed(model)
        return pretty(listed(await self._client.list(model)))

    async def publish(self, request: Request) -> Response:
        """Publish a model: durable on return, loading continues in the background."""
        fields = await _fields(request, _PUBLISH_KEYS, _PUBLISH_HINT + "publish")
        model, path, checkpoint, replicas = _spec(fields)
        check_allowed(model)
        await self._client.publish(model, path, checkpoint, replicas)
        return pretty(_published(model, path, checkpoint, replicas))

    async def update(self, request: Request) -> Response:
        """Change a published model."""
        fields = await _fields(request, _PUBLISH_KEYS, _PUBLISH_HINT + "update")
        model, path, checkpoint, replicas = _spec(fields)
        check_allowed(model)
        await self._client.update(model, model_path=path, checkpoint=checkpoint, replicas=replicas)
        return pretty(_published(model, path, checkpoint, replicas))

    async def unpublish(self, request: Request) -> Response:
        fields = await _fields(request, ("model",), "Provide model for unpublish")
        model = _text(fields, "model")
        check_allowed(model)
        await self._client.unpublish(model)
        return pretty({"model": model})

    async def generate(self, request: Request) -> Response:
        """Generate with the model's own defaults; returns every sample with its score."""
        keys = ("model", "query")
        fields = await _fields(request, keys, "Provide model and query for generate")
        model, query = _text(fields, "model"), _text(fields, "query")
        answer = await samples(self._backend, request, model, query, None)
        return pretty({"generate_response": answer})


def _told(*keys: str) -> dict[str, Any]:
    return generation_1_body({key: _FIELDS[key] for key in keys})


def pretty(content: object) -> Response:
    """Format JSON as generation 1 did: no Content-Type, trailing newline."""
    return Response(json.dumps(content, indent=4) + "\n")


def _published(model: str, path: str, checkpoint: str, replicas: int) -> dict[str, object]:
    return {"model": model, "path": path, "checkpoint": checkpoint, "replicas": replicas}


async def _fields(request: Request, keys: tuple[str, ...], hint: str) -> Mapping[str, object]:
    """Parse a body with exactly these keys. Raises InvalidRequest with Saxml's text."""
    try:
        body: object = json.loads(await read_body(request, RequestRoute.GENERATE))
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the body is not JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise InvalidRequest(hint)
    fields = cast("dict[str, object]", body)
    if fields.keys() != set(keys):
        raise InvalidRequest(hint)
    return fields


def _spec(fields: Mapping[str, object]) -> tuple[str, str, str, int]:
    model, path, checkpoint = (_text(fields, key) for key in _PUBLISH_KEYS[:3])
    return model, path, checkpoint, _replicas(fields["replicas"])


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise InvalidRequest(f"{key}: give a string", param=key)
    _FIELDS[key].check_text(value)
    try:
        value.encode()
    except UnicodeEncodeError as exc:  # a lone surrogate, which JSON allows
        raise InvalidRequest(f"{key} is not valid text: {exc.reason}", param=key) from exc
    return value


def _replicas(value: object) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError):
            return check_replicas(int(value))
    raise InvalidRequest(f"replicas: {quoted(value)} is not a number of replicas", param="replicas")
