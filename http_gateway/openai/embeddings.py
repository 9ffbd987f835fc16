"""OpenAI's /v1/embeddings: decodes the request, calls the cell, encodes the reply."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai.embedding_schema import EmbeddingRequest
from http_gateway.openapi import body_of
from sax.fields.field import RequestRoute
from sax.types import Embedded


class EmbeddingRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1", tags=["openai"])
        router.add_api_route(
            "/embeddings", self.embed, methods=["POST"], openapi_extra=body_of(EmbeddingRequest)
        )
        return router

    async def embed(self, request: Request) -> Response:
        """Embed one or several texts."""
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
        reply = _reply(body.model, embedded, in_base64=body.encoding_format == "base64")
        return Response(msgspec.json.encode(reply), media_type="application/json")


def _reply(model: str, embedded: Embedded, *, in_base64: bool) -> dict[str, object]:
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": to_base64(vector) if in_base64 else vector,
        }
        for index, vector in enumerate(embedded.vectors)
    ]
    tokens = embedded.prompt_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def to_base64(vector: Sequence[float]) -> str:
    """Encode as little-endian f32, which is what OpenAI's clients unpack."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
