"""OpenAI's /v1/embeddings and vLLM's /pooling.

Each decodes the request, calls the cell and encodes the reply.
"""

from __future__ import annotations

import base64
import sys
import time
import uuid
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.completions import Prompt, read_prompts
from http_gateway.openai.prompts import prompts_schema
from http_gateway.openai.reply import InputUsage, ListHead
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import JSON, WITH_MODEL, OpenAiError, RequestBody, operation
from sax.fields.field import RequestRoute
from sax.passes import Embedded


class EmbeddingEntry(TypedDict):
    """The vector of one input: numbers, or little-endian f32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: InputUsage


class PooledEntry(TypedDict):
    """The vector of one input: numbers, or little-endian f32 in base64."""

    object: Literal["pooling"]
    index: int
    data: list[float] | str


class PooledList(ListHead):
    data: list[PooledEntry]


_HARMLESS = frozenset({"user", "metadata", "safety_identifier"})
# Field -> the values besides null that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = {
    # vLLM extensions that are not supported here
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "normalize": (),
    "priority": (0,),
    "task": ("embed",),
}


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings. null always means the default."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(RequestRoute.EMBEDDINGS, "model")]
    input: Annotated[
        list[str | list[int]],
        BeforeValidator(read_prompts),
        sized(RequestRoute.EMBEDDINGS, "input", least=1),
        bounded(RequestRoute.EMBEDDINGS, "input"),
    ]
    encoding_format: (
        Annotated[Literal["float", "base64"], bounded(RequestRoute.EMBEDDINGS, "encoding_format")]
        | None
    ) = None
    # Seconds, waiting included
    timeout: Annotated[float, ranged(RequestRoute.EMBEDDINGS, "timeout")] | None = None
    dimensions: Annotated[int, ranged(RequestRoute.EMBEDDINGS, "dimensions"), WHOLE] | None = None
    # One of the model's prompts, to go before each text, as in sentence-transformers
    prompt_name: Annotated[str, bounded(RequestRoute.EMBEDDINGS, "prompt_name")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, _EXTRA, _HARMLESS)

    def inputs(self) -> list[Prompt]:
        return [each if isinstance(each, str) else tuple(each) for each in self.input]


EMBED = RequestBody(
    model=EmbeddingRequest,
    route=RequestRoute.EMBEDDINGS,
    unchanged=_EXTRA,
    labels=_HARMLESS,
    replaced={"input": prompts_schema(RequestRoute.EMBEDDINGS, "input")},
)

_told = partial(operation, errors=OpenAiError, statuses=WITH_MODEL, body=EMBED)
_EMBEDDED, _POOLED = _told(EmbeddingList), _told(PooledList)


class EmbeddingRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(tags=["openai"])
        for path, handler, reply in (
            ("/v1/embeddings", self.embed, _EMBEDDED),
            ("/pooling", self.pool, _POOLED),
        ):
            router.add_api_route(path, handler, methods=["POST"], **reply)
        return router

    async def embed(self, request: Request) -> Response:
        """Embed one or several texts."""
        body, embedded = await self._embedded(request)
        return Response(msgspec.json.encode(_embeddings(body, embedded)), media_type=JSON)

    async def pool(self, request: Request) -> Response:
        """Embed one or several texts, in vLLM's format."""
        body, embedded = await self._embedded(request)
        return Response(msgspec.json.encode(_pooled(body, embedded)), media_type=JSON)

    async def _embedded(self, request: Request) -> tuple[EmbeddingRequest, Embedded]:
        body = EmbeddingRequest.model_validate_json(
            await read_body(request, RequestRoute.EMBEDDINGS)
        )
        body.check()
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        work = backend.client.embed_counted(
            model_id,
            body.inputs(),
            limit_s,
            dimensions=body.dimensions or 0,
            prompt_name=body.prompt_name or "",
        )
        embedded = await backend.run(request, work)
        backend.count(embedded.prompt_tokens)
        return body, embedded


def _embeddings(body: EmbeddingRequest, embedded: Embedded) -> EmbeddingList:
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(_vectors(body, embedded))
        ],
        "model": body.model,
        "usage": _usage(embedded),
    }


def _pooled(body: EmbeddingRequest, embedded: Embedded) -> PooledList:
    return {
        "id": f"pool-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model,
        "data": [
            {"object": "pooling", "index": index, "data": vector}
            for index, vector in enumerate(_vectors(body, embedded))
        ],
        "usage": _usage(embedded),
    }


def _vectors(body: EmbeddingRequest, embedded: Embedded) -> list[list[float] | str]:
    if body.encoding_format == "base64":
        return [to_base64(vector) for vector in embedded.vectors]
    return [*embedded.vectors]


def _usage(embedded: Embedded) -> InputUsage:
    tokens = embedded.prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def to_base64(vector: Sequence[float]) -> str:
    """Encode as little-endian f32, which is what OpenAI's clients unpack."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
