"""Anthropic's routes: /v1/messages and /v1/messages/count_tokens.

Each decodes the request, calls the cell and encodes the reply. `anthropic-version` is accepted and
changes nothing.
"""

from __future__ import annotations

import uuid
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access.record import RequestRecord
from http_gateway.anthropic.bodies import COUNT, MESSAGE
from http_gateway.anthropic.context_edits import AppliedEdit, edited
from http_gateway.anthropic.reply import (
    AnthropicMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    ContextManagement,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    StreamPing,
    TokenCount,
)
from http_gateway.anthropic.schema import (
    HINTS,
    NAMES,
    AnthropicFields,
    CountRequest,
    MessageRequest,
)
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.chats.answering import (
    ChatAnswering,
    ChatQuestion,
    ChatStream,
    renamed,
    with_hints,
)
from http_gateway.openapi import JSON, WITH_MODEL, AnthropicError, EventKinds, operation
from http_gateway.streams.sse import named_event
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.types import ChatOptions, GenerateRequest, Message

_told = partial(operation, errors=AnthropicError, statuses=WITH_MODEL)
_EVENTS = EventKinds(
    MessageStart, StreamPing, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop,
    AnthropicError,
)  # fmt: skip
_MESSAGE = _told(AnthropicMessage, body=MESSAGE, events=_EVENTS)
_COUNT = _told(TokenCount, body=COUNT)


class AnthropicRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._answering = ChatAnswering(backend)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/messages", tags=["anthropic"])
        router.add_api_route("", self.message, methods=["POST"], **_MESSAGE)
        router.add_api_route("/count_tokens", self.count_tokens, methods=["POST"], **_COUNT)
        return router

    async def message(self, request: Request) -> Response:
        """Answer a conversation with a message, streamed or not."""
        body = MessageRequest.model_validate_json(await read_body(request, RequestRoute.MESSAGES))
        body.check()
        model_id = await self._backend.catalog.resolve(body.model)
        prompt, edits = await self._prompt(request, body, model_id)
        made = MessageAnswer(
            f"msg_{uuid.uuid4().hex}",
            body.model,
            body.shape(),
            max_tokens=body.max_tokens,
            thinking_shown=body.thoughts.shown,
            context=UNSET if body.context_management is None else ContextManagement(edits),
        )
        question = self._question(request, body, model_id, prompt, made.id)
        if body.stream:
            style = ChatStream(
                encode=made.encode, closing=made.closing, failure=_failure, headers=_request_id()
            )
            return self._answering.stream(request, question, made.answer, style)
        await self._answering.read(request, question, made.answer, made.add)
        return Response(made.body(), headers=_request_id(), media_type=JSON)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a conversation as the model reads it."""
        raw = await read_body(request, RequestRoute.COUNT_TOKENS)
        body = CountRequest.model_validate_json(raw)
        body.check()
        model_id = await self._backend.catalog.resolve(body.model)
        sent = await self._backend.with_images(body.prompt)
        before = await self._count(request, body, model_id, sent)
        reply: TokenCount = {"input_tokens": before}
        if body.edits:
            prompt, _ = await self._edited(request, body, model_id, sent)
            after = await self._count(request, body, model_id, prompt)
            reply = {"input_tokens": after, "context_management": {"original_input_tokens": before}}
        return Response(msgspec.json.encode(reply), headers=_request_id(), media_type=JSON)

    async def _prompt(
        self, request: Request, body: AnthropicFields, model_id: str
    ) -> tuple[tuple[Message, ...], list[AppliedEdit]]:
        sent = await self._backend.with_images(body.prompt)
        return await self._edited(request, body, model_id, sent)

    async def _edited(
        self,
        request: Request,
        body: AnthropicFields,
        model_id: str,
        prompt: tuple[Message, ...],
    ) -> tuple[tuple[Message, ...], list[AppliedEdit]]:
        async def count(chat: tuple[Message, ...]) -> int:
            return await self._count(request, body, model_id, chat)

        return await edited(body.edits, prompt, count)

    async def _count(
        self,
        request: Request,
        body: AnthropicFields,
        model_id: str,
        prompt: tuple[Message, ...],
    ) -> int:
        """Return the tokens of a prompt as the model reads it. Raises SaxError."""
        client, limit_s = self._backend.client, self._backend.limit_s(request)

        async def tokens(chat: ChatOptions) -> int:
            return len((await client.tokenize(model_id, prompt, limit_s, chat=chat))[0])

        try:
            return await self._backend.run(request, with_hints(body.options, HINTS, tokens))
        except SaxError as error:
            raise renamed(error, NAMES) from error

    def _question(
        self,
        request: Request,
        body: MessageRequest,
        model_id: str,
        prompt: tuple[Message, ...],
        reply_id: str,
    ) -> ChatQuestion:
        generate = GenerateRequest(
            model_id=model_id,
            prompt=prompt,
            sampling=body.sampling(),
            chat=body.options,
            request_id=RequestRecord.current().id_in_cell(reply_id),
            session=body.session,
        )
        limit_s = self._backend.limit_s(request)
        return ChatQuestion(generate=generate, limit_s=limit_s, names=NAMES, hints=HINTS)


def _request_id() -> dict[str, str]:
    """Return the request's id under the name that Anthropic's clients read."""
    return {"request-id": RequestRecord.current().request_id}


def _failure(error: SaxError) -> bytes:
    return named_event("error", problems.anthropic_error(problems.describe(error)))
