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
from typing import Annotated, Any, ClassVar, Literal, TypedDict, TypeVar

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.completions import read_prompts
from http_gateway.openai.passes.inputs import (
    CHAT_EXTRA,
    inputs_of,
    inputs_schema,
    read_messages,
    with_linked_images,
)
from http_gateway.openai.prompts import prompts_schema, seen_part_schema
from http_gateway.openai.reply import InputUsage, ListHead
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import JSON, WITH_MODEL, OpenAiError, RequestBody, Schema, operation
from sax.chat import Message
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.passes import ChatInput, Embedded, EmbedInput


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
    """The vector of one input, or one per token: numbers, or little-endian f32 in base64."""

    object: Literal["pooling"]
    index: int
    data: list[float | list[float]] | str


class PooledList(ListHead):
    data: list[PooledEntry]


_Numbers = Sequence[Sequence[float | list[float]]]  # of each input: a vector, or several
Body = TypeVar("Body", bound="EmbeddingRequest")

_HARMLESS = frozenset({"user", "metadata", "safety_identifier"})
# Field -> the values besides null that change nothing. Any other value is refused.
_EXTRA: dict[str, tuple[object, ...]] = CHAT_EXTRA | {
    # vLLM extensions that are not supported here
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "normalize": (),
    "priority": (0,),
}


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    unchanged: ClassVar = _EXTRA | {"task": ("embed",)}

    model: Annotated[str, bounded(RequestRoute.EMBEDDINGS, "model")]
    # Texts, token ids, or texts and images; or `messages`
    input: Annotated[
        list[Any],
        sized(RequestRoute.EMBEDDINGS, "input", least=1),
        BeforeValidator(inputs_of(RequestRoute.EMBEDDINGS, read_prompts)),
    ] = []
    # One input of texts and images, as a chat
    messages: Annotated[ChatInput, BeforeValidator(read_messages)] | None = None
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
        """Raise UnsupportedParameter for a field that cannot be honoured.

        Raises InvalidRequest for none or both of input and messages.
        """
        if bool(self.input) == (self.messages is not None):
            raise InvalidRequest(
                "input or messages is required: send one of the two", param="input"
            )
        unchanged = self.unchanged
        if self.messages is not None and self.messages.messages[-1] == Message("assistant", ""):
            unchanged = unchanged | {"continue_final_message": (True, False)}
        refuse_unsupported(self.model_extra, unchanged, _HARMLESS)

    def inputs(self) -> list[EmbedInput]:
        return self.input if self.messages is None else [self.messages]


_Task = Literal["embed", "token_embed", "classify", "token_classify"]
_TOKENS = frozenset({"token_embed", "token_classify"})


class PoolingRequest(EmbeddingRequest):
    """POST /pooling. null always means the default."""

    unchanged: ClassVar = _EXTRA

    # null: embed or token_embed, as the model does
    task: Annotated[_Task, bounded(RequestRoute.EMBEDDINGS, "task")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured, or not with the task."""
        super().check()
        if self.task not in ("classify", "token_classify"):
            return
        for name in ("dimensions", "prompt_name"):
            if getattr(self, name) is not None:
                raise UnsupportedParameter(
                    f"{name} is for vectors, and task is {self.task}: leave one out", param=name
                )

    def check_answer(self, *, by_token: bool) -> None:
        """Raise UnsupportedParameter if the model does not do the task."""
        if self.task is not None and (self.task in _TOKENS) != by_token:
            does = "each token" if by_token else "each input"
            raise UnsupportedParameter(
                f"task is {self.task}, but this model's numbers are of {does}: leave it out, or "
                "name another model",
                param="task",
            )


def _body(model: type[EmbeddingRequest]) -> RequestBody:
    return RequestBody(
        model=model,
        route=RequestRoute.EMBEDDINGS,
        unchanged=model.unchanged,
        labels=_HARMLESS,
        replaced={
            "input": inputs_schema(
                RequestRoute.EMBEDDINGS, prompts_schema(RequestRoute.EMBEDDINGS, "input")
            ),
            "messages": {
                "type": "array",
                "items": {"anyOf": [_turn_schema("user"), _turn_schema("system", "assistant")]},
                "minItems": 1,
                "maxItems": field(RequestRoute.EMBEDDINGS, "messages").count,
            },
        },
        rules=({"oneOf": [{"required": ["input"]}, {"required": ["messages"]}]},),
    )


def _turn_schema(*roles: str) -> Schema:
    text: Schema = {
        "type": "string",
        "maxLength": field(RequestRoute.CHAT, "messages.content").bytes,
    }
    part = seen_part_schema() if roles == ("user",) else seen_part_schema()["anyOf"][0]
    parts: Schema = {"type": "array", "items": part, "minItems": 1}
    return {
        "type": "object",
        "properties": {"role": {"enum": [*roles]}, "content": {"anyOf": [text, parts]}},
        "required": ["role", "content"],
        "additionalProperties": False,
    }


EMBED, POOL = _body(EmbeddingRequest), _body(PoolingRequest)

_told = partial(operation, errors=OpenAiError, statuses=WITH_MODEL)
_EMBEDDED, _POOLED = _told(EmbeddingList, body=EMBED), _told(PooledList, body=POOL)


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
        """Embed one or several texts, or images by a model that sees."""
        body = await _read(request, EmbeddingRequest)
        embedded = await self._embedded(request, body)
        return Response(msgspec.json.encode(_embeddings(body, embedded)), media_type=JSON)

    async def pool(self, request: Request) -> Response:
        """Embed or classify one or several texts, or each of their tokens, in vLLM's format."""
        body = await _read(request, PoolingRequest)
        if body.task in ("classify", "token_classify"):
            numbers, tokens = await self._scores(request, body)
        else:
            takes_tokens = body.task != "embed"
            embedded = await self._embedded(request, body, takes_tokens=takes_tokens)
            body.check_answer(by_token=not embedded.vectors)
            numbers, tokens = embedded.vectors or embedded.tokens, embedded.prompt_tokens
        reply = _pooled(body, numbers, tokens)
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def _embedded(
        self, request: Request, body: EmbeddingRequest, *, takes_tokens: bool = False
    ) -> Embedded:
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        inputs = await with_linked_images(backend, body.inputs(), "input")
        work = backend.client.embed_counted(
            model_id,
            inputs,
            limit_s,
            dimensions=body.dimensions or 0,
            prompt_name=body.prompt_name or "",
            takes_tokens=takes_tokens,
        )
        embedded = await backend.run(request, work)
        backend.count(embedded.prompt_tokens)
        return embedded

    async def _scores(self, request: Request, body: PoolingRequest) -> tuple[_Numbers, int]:
        """Return the scores of each input, or of each of its tokens, and the number of tokens."""
        backend = self._backend
        model_id = await backend.catalog.resolve(body.model)
        limit_s = backend.limit_s(request, body.timeout)
        inputs = await with_linked_images(backend, body.inputs(), "input")
        work = backend.client.classify(model_id, inputs, limit_s, takes_tokens=True)
        found = await backend.run(request, work)
        backend.count(found.prompt_tokens)
        body.check_answer(by_token=not found.scores)
        tokens = [[token.scores for token in each] for each in found.tokens]
        return found.scores or tokens, found.prompt_tokens


async def _read(request: Request, kind: type[Body]) -> Body:
    body = kind.model_validate_json(await read_body(request, RequestRoute.EMBEDDINGS))
    body.check()
    return body


def _embeddings(body: EmbeddingRequest, embedded: Embedded) -> EmbeddingList:
    packs = body.encoding_format == "base64"
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": to_base64(vector) if packs else vector,
            }
            for index, vector in enumerate(embedded.vectors)
        ],
        "model": body.model,
        "usage": _usage(embedded.prompt_tokens),
    }


def _pooled(body: PoolingRequest, numbers: _Numbers, prompt_tokens: int) -> PooledList:
    packs = body.encoding_format == "base64"
    return {
        "id": f"pool-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model,
        "data": [
            {"object": "pooling", "index": index, "data": _packed(each) if packs else [*each]}
            for index, each in enumerate(numbers)
        ],
        "usage": _usage(prompt_tokens),
    }


def _packed(numbers: Sequence[float | list[float]]) -> str:
    """Encode a vector, or those of tokens one after the other."""
    flat = list[float]()
    for each in numbers:
        flat += each if isinstance(each, list) else [each]
    return to_base64(flat)


def _usage(prompt_tokens: int) -> InputUsage:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}


def to_base64(vector: Sequence[float]) -> str:
    """Encode as little-endian f32, which is what OpenAI's clients unpack."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
