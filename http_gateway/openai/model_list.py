"""The list of models: GET /v1/models and /v1/models/NAME, as OpenAI's clients read it, or for those
that send the header anthropic-version as Anthropic's do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.openai.bodies import NAME
from http_gateway.openai.reply import ModelCard, ModelList
from http_gateway.openapi import ALWAYS, OpenAiError, operation, schema_of
from sax.adapters import base_of
from sax.errors import NotFound
from sax.fields.table import MODEL_BYTES
from sax.format import quoted
from sax.types import PublishedModel

ANTHROPIC_HEADER = "anthropic-version"


class AnthropicModel(TypedDict):
    """A published model; both numbers of tokens are those of its context, null if unknown."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModels(TypedDict):
    """A page of models, those published last first."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AnthropicPage(BaseModel):
    """Query of Anthropic's list: the page after a model, or before one."""

    model_config = ConfigDict(defer_build=True, extra="ignore", frozen=True)

    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    after_id: Annotated[str, Field(max_length=MODEL_BYTES)] | None = None
    before_id: Annotated[str, Field(max_length=MODEL_BYTES)] | None = None


_LIST = operation(
    {"anyOf": [schema_of(ModelList), schema_of(AnthropicModels)]},
    errors=OpenAiError,
    statuses=(*ALWAYS, 400, 404),
)
_ONE = operation(
    {"anyOf": [schema_of(ModelCard), schema_of(AnthropicModel)]},
    errors=OpenAiError,
    statuses=(*ALWAYS, 400, 404),
    parameters=[NAME],
)


class ModelListRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def add_to(self, router: APIRouter) -> None:
        router.add_api_route("/models", self.models, methods=["GET"], **_LIST)
        # A full name contains slashes, percent-encoded or not.
        router.add_api_route("/models/{name:path}", self.model, methods=["GET"], **_ONE)

    async def models(self, request: Request) -> Response:
        """List every published model that the caller's key may use; with the header
        anthropic-version a page of them (limit, after_id, before_id), as Anthropic's clients read
        it."""
        models = await self._backend.catalog.refresh()
        if ANTHROPIC_HEADER in request.headers:
            return _json(
                anthropic_page(models, AnthropicPage.model_validate(dict(request.query_params)))
            )
        return _json({"object": "list", "data": [model_card(model) for model in models]})

    async def model(self, request: Request) -> Response:
        """Return one published model, by its full name or last component."""
        catalog = self._backend.catalog
        model_id = await catalog.resolve(request.path_params["name"])
        models = {model.spec.model_id: model for model in await catalog.refresh()}
        found = models.get(model_id) or await self._backend.client.list(model_id)
        shape = anthropic_model if ANTHROPIC_HEADER in request.headers else model_card
        return _json(shape(found))


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


def model_card(model: PublishedModel) -> dict[str, object]:
    return {
        "id": model.spec.model_id,
        "object": "model",
        "created": int(model.published_at_s),
        "owned_by": "sax",
        **({"parent": base} if (base := base_of(model.spec)) else {}),
        **({"max_model_len": model.max_context} if model.max_context else {}),
        "replicas": model.spec.replicas,
        "ready_replicas": model.ready_replicas,
    }


def anthropic_page(models: Sequence[PublishedModel], page: AnthropicPage) -> AnthropicModels:
    """Return a page of models. Raises NotFound for an id that is none of theirs."""
    newest = sorted(models, key=lambda each: (-each.published_at_s, each.spec.model_id))
    ids = [each.spec.model_id for each in newest]
    if page.before_id is not None:
        end = _place(ids, page.before_id, "before_id")
        start, more = max(0, end - page.limit), end > page.limit
    else:
        start = 0 if page.after_id is None else _place(ids, page.after_id, "after_id") + 1
        end, more = start + page.limit, len(ids) > start + page.limit
    shown = newest[start:end]
    return {
        "data": [anthropic_model(each) for each in shown],
        "has_more": more,
        "first_id": shown[0].spec.model_id if shown else None,
        "last_id": shown[-1].spec.model_id if shown else None,
    }


def _place(ids: Sequence[str], id: str, name: str) -> int:
    if id not in ids:
        raise NotFound(f"{name} is {quoted(id)}: give the id of a model of this list", param=name)
    return ids.index(id)


def anthropic_model(model: PublishedModel) -> AnthropicModel:
    id, context = model.spec.model_id, model.max_context or None
    return {
        "type": "model",
        "id": id,
        "display_name": id.rpartition("/")[2],
        "created_at": datetime.fromtimestamp(model.published_at_s, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }
