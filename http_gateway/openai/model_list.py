"""OpenAI's list of models: GET /v1/models and /v1/models/NAME."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.openai.bodies import NAME
from http_gateway.openai.reply import ModelCard, ModelList
from http_gateway.openapi import ALWAYS, OpenAiError, operation
from sax.adapters import base_of
from sax.types import PublishedModel

_LIST = operation(ModelList, errors=OpenAiError)
_ONE = operation(ModelCard, errors=OpenAiError, statuses=(*ALWAYS, 400, 404), parameters=[NAME])


class ModelListRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/models", self.models, methods=["GET"], **_LIST)
        # A full name contains slashes, percent-encoded or not.
        router.add_api_route("/models/{name:path}", self.model, methods=["GET"], **_ONE)

    async def models(self) -> Response:
        """List every published model that the caller's key may use."""
        found = [model_card(model) for model in await self._backend.catalog.refresh()]
        return _json({"object": "list", "data": found})

    async def model(self, request: Request) -> Response:
        """Return one published model, by its full name or last component."""
        catalog = self._backend.catalog
        model_id = await catalog.resolve(request.path_params["name"])
        models = {model.spec.model_id: model for model in await catalog.refresh()}
        return _json(model_card(models.get(model_id) or await self._backend.client.list(model_id)))


def _json(body: dict[str, object]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def model_card(model: PublishedModel) -> dict[str, object]:
    return {
        "id": model.spec.model_id,
        "object": "model",
        "created": 0,  # the cell does not record when a model was published
        "owned_by": "sax",
        **({"parent": base} if (base := base_of(model.spec)) else {}),
        **({"max_model_len": model.max_context} if model.max_context else {}),
        "replicas": model.spec.replicas,
        "ready_replicas": model.ready_replicas,
    }
