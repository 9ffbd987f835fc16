"""Anthropic's routes: /v1/messages and /v1/messages/count_tokens.

Each decodes the request, calls the cell and encodes the reply. `anthropic-version` is accepted and
changes nothing.
"""

from __future__ import annotations

import uuid
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access.record import RequestRecord
from http_gateway.anthropic.bodies import COUNT, MESSAGE
from http_gateway.anthropic.reply import (
    AnthropicMessage,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    StreamPing,
    TokenCount,
)
from http_gateway.anthropic.schema import NAMES, CountRequest, MessageRequest
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.chats.answering import ChatAnswering, ChatQuestion, ChatStream, renamed
from http_gateway.openapi import JSON, WITH_MODEL, AnthropicError, EventKinds, operation
from http_gateway.streams.sse import named_event
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.types import GenerateRequest

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
        made = MessageAnswer(f"msg_{uuid.uuid4().hex}", body.model, body.shape())
        question = await self._question(request, body, made.id)
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
        limit_s = self._backend.limit_s(request)
        prompt = await self._backend.with_images(body.prompt)
        work = self._backend.client.tokenize(model_id, prompt, limit_s, chat=body.options)
        try:
            ids, _ = await self._backend.run(request, work)
        except SaxError as error:
            raise renamed(error, NAMES) from error
        reply: TokenCount = {"input_tokens": len(ids)}
        return Response(msgspec.json.encode(reply), headers=_request_id(), media_type=JSON)

    async def _question(
        self, request: Request, body: MessageRequest, reply_id: str
    ) -> ChatQuestion:
        model_id = await self._backend.catalog.resolve(body.model)
        generate = GenerateRequest(
            model_id=model_id,
            prompt=await self._backend.with_images(body.prompt),
            sampling=body.sampling(),
            chat=body.options,
            request_id=RequestRecord.current().id_in_cell(reply_id),
            session=body.session,
        )
        limit_s = self._backend.limit_s(request)
        return ChatQuestion(generate=generate, limit_s=limit_s, names=NAMES)


def _request_id() -> dict[str, str]:
    """Return the request's id under the name that Anthropic's clients read."""
    return {"request-id": RequestRecord.current().request_id}


def _failure(error: SaxError) -> bytes:
    return named_event("error", problems.anthropic_error(problems.describe(error)))
