"""vLLM's /tokenize and /detokenize."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, partial
from typing import Annotated, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.bounds import WHOLE, bounded, ranged, sized
from http_gateway.openai.chat import to_messages
from http_gateway.openai.chat_schema import ChatFields
from http_gateway.openai.content_parts import with_heard
from http_gateway.openai.prompts import messages_schema
from http_gateway.openai.schema import ChatMessage
from http_gateway.openai.unsupported import refuse_unsupported
from http_gateway.openapi import JSON, WITH_MODEL, OpenAiError, RequestBody, Schema, operation
from sax.errors import InvalidRequest
from sax.fields.field import RequestRoute
from sax.fields.sampling import INT32
from sax.types import ChatOptions, Message, Tokenized


class TokenList(TypedDict):
    """The tokens of a prompt as the model reads it."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokensText(TypedDict):
    """The text of tokens, control tokens written out."""

    prompt: str


_TEXT, _TOKENS = RequestRoute.TEXT_TO_TOKENS, RequestRoute.TOKENS_TO_TEXT
_LABELS = frozenset({"user", "metadata", "safety_identifier"})
_RENDERED = (
    *("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    "mm_processor_kwargs",
)
# Field -> the values besides null that change nothing. Any other value is refused.
_OF_CHATS: dict[str, tuple[object, ...]] = {
    "chat_template": (),
}


class TokenizeBody(BaseModel):
    """POST /tokenize: a prompt or messages. null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_TEXT, "model")] | None = None  # the only one
    prompt: Annotated[str, bounded(_TEXT, "prompt"), Field(min_length=1)] | None = None
    messages: (
        Annotated[list[ChatMessage], sized(_TEXT, "messages", least=1), bounded(_TEXT, "messages")]
        | None
    ) = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    tools: Annotated[list[dict[str, object]], bounded(_TEXT, "tools")] | None = None
    chat_template_kwargs: (
        Annotated[dict[str, object], bounded(_TEXT, "chat_template_kwargs")] | None
    ) = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    mm_processor_kwargs: (
        Annotated[dict[str, object], bounded(_TEXT, "mm_processor_kwargs")] | None
    ) = None
    timeout: Annotated[float, ranged(_TEXT, "timeout")] | None = None

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        given = {name: getattr(self, name) for name in _RENDERED}
        for name, value in given.items():
            if value is not None and self.messages is None:
                raise InvalidRequest(f"{name} is for a chat: send messages", param=name)
        return replace(ChatFields.model_construct(**given).options, divided=False)

    def text(self) -> str | tuple[Message, ...]:
        """Return the prompt. Raises InvalidRequest, or UnsupportedParameter for a field that cannot
        be honoured."""
        refuse_unsupported(self.model_extra, _OF_CHATS, _LABELS)
        if self.prompt is not None and self.messages is None:
            return self.prompt
        if self.messages is not None and self.prompt is None:
            return with_heard(to_messages(self.messages), self.mm_processor_kwargs)
        raise InvalidRequest("send either prompt, a text, or messages", param="prompt")


class DetokenizeBody(BaseModel):
    """POST /detokenize: token ids."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    model: Annotated[str, bounded(_TOKENS, "model")] | None = None  # the only one
    tokens: Annotated[
        list[Annotated[int, Field(ge=0, le=INT32)]], bounded(_TOKENS, "tokens"), WHOLE
    ]
    timeout: Annotated[float, ranged(_TOKENS, "timeout")] | None = None

    def check(self) -> None:
        """Raise UnsupportedParameter for a field that cannot be honoured."""
        refuse_unsupported(self.model_extra, {}, _LABELS)


def _only(name: str, kind: str) -> Schema:
    return {"properties": {name: {"type": kind}}, "required": [name]}


TOKENIZE = RequestBody(
    model=TokenizeBody,
    route=_TEXT,
    unchanged=_OF_CHATS,
    labels=_LABELS,
    replaced={"messages": messages_schema(_TEXT, optional=True)},
    rules=({"oneOf": [_only("prompt", "string"), _only("messages", "array")]},),
)
DETOKENIZE = RequestBody(model=DetokenizeBody, route=_TOKENS, labels=_LABELS)

_told = partial(operation, errors=OpenAiError, statuses=WITH_MODEL)
_TOKENIZE = _told(TokenList, body=TOKENIZE)
_DETOKENIZE = _told(TokensText, body=DETOKENIZE)


class TokenRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def router(self) -> APIRouter:
        router = APIRouter(tags=["tokens"])
        add = router.add_api_route
        add("/tokenize", self.tokenize, methods=["POST"], **_TOKENIZE)
        add("/detokenize", self.detokenize, methods=["POST"], **_DETOKENIZE)
        return router

    async def tokenize(self, request: Request) -> Response:
        """Return the token ids of a text or chat as the model reads them."""
        raw = await read_body(request, RequestRoute.TEXT_TO_TOKENS)
        body = TokenizeBody.model_validate_json(raw)
        prompt, chat = await self._backend.with_images(body.text()), body.options
        model_id = await self._backend.catalog.resolve_or_only(body.model)
        work = self._tokenized(request, body, model_id, prompt, chat)
        found = await self._backend.run(request, work)
        reply: TokenList = {
            "count": len(found.ids),
            "max_model_len": found.max_context,
            "tokens": [*found.ids],
            "token_strs": [*found.token_texts] if body.return_token_strs else None,
        }
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of token ids; control tokens are written out."""
        raw = await read_body(request, RequestRoute.TOKENS_TO_TEXT)
        body = DetokenizeBody.model_validate_json(raw)
        body.check()
        model_id = await self._backend.catalog.resolve_or_only(body.model)
        limit_s = self._backend.limit_s(request, body.timeout)
        work = self._backend.client.detokenize(model_id, body.tokens, limit_s)
        reply: TokensText = {"prompt": await self._backend.run(request, work)}
        return Response(msgspec.json.encode(reply), media_type=JSON)

    async def _tokenized(
        self,
        request: Request,
        body: TokenizeBody,
        model_id: str,
        prompt: str | tuple[Message, ...],
        chat: ChatOptions,
    ) -> Tokenized:
        client, limit_s = self._backend.client, self._backend.limit_s(request, body.timeout)
        special = body.add_special_tokens
        if body.return_token_strs:
            return await client.tokenize_texts(
                model_id, prompt, limit_s, add_special_tokens=special, chat=chat
            )
        ids, most = await client.tokenize(
            model_id, prompt, limit_s, add_special_tokens=special, chat=chat
        )
        return Tokenized(tuple(ids), most)
