"""llama.cpp's route /infill: an answer between two texts, for plug-ins of editors."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access.record import RequestRecord
from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.chats.answering import ChatAnswering, ChatQuestion, ChatStream
from http_gateway.chats.stopwatch import Stopwatch
from http_gateway.llama_cpp.reply import InfillAnswer, InfillPiece, InfillReply
from http_gateway.llama_cpp.schema import INFILL, InfillRequest
from http_gateway.openapi import JSON, WITH_MODEL, EventKinds, OpenAiError, operation
from http_gateway.streams.sse import Feed, event, stop
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.types import GenerateRequest, ReplyOptions, TokenChunk

_EVENTS = EventKinds(InfillPiece, InfillReply, OpenAiError)
_INFILL = operation(
    InfillReply, errors=OpenAiError, statuses=WITH_MODEL, body=INFILL, events=_EVENTS
)


class LlamaCppRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._answering = ChatAnswering(backend)

    def router(self) -> APIRouter:
        router = APIRouter(tags=["llama.cpp"])
        router.add_api_route("/infill", self.infill, methods=["POST"], **_INFILL)
        return router

    async def infill(self, request: Request) -> Response:
        """Fill in the middle between two texts, streamed or not."""
        body = InfillRequest.model_validate_json(await read_body(request, RequestRoute.INFILL))
        body.check()
        model_id = await self._backend.catalog.resolve_or_only(body.model)
        watch = Stopwatch(time.perf_counter, RequestRecord.current().arrived_s)
        made = InfillAnswer(
            body.model or model_id,
            watch,
            indent=body.n_indent or 0,
            only_cached=body.only_cached,
            fields=body.response_fields or (),
        )
        question = self._question(request, body, model_id)
        feed = partial(_until, made.over, self._answering.feed(question))
        if body.stream:
            style = ChatStream(encode=made.encode, closing=made.closing, failure=_failure)
            return self._answering.stream(request, feed, made.answer, style)
        await self._answering.read(request, feed, made.answer, made.add)
        return Response(made.body(), media_type=JSON)

    def _question(self, request: Request, body: InfillRequest, model_id: str) -> ChatQuestion:
        generate = GenerateRequest(
            model_id=model_id,
            prompt=body.before,
            sampling=body.sampling(),
            reply=ReplyOptions(suffix=body.input_suffix),
            request_id=RequestRecord.current().id_in_cell(f"infill-{uuid.uuid4().hex}"),
        )
        limit_s = self._backend.limit_s(request, body.timeout)
        return ChatQuestion(generate=generate, limit_s=limit_s, names={"suffix": "input_suffix"})


async def _until(
    over: asyncio.Event, feed: Feed[TokenChunk], sink: Callable[[TokenChunk], None]
) -> None:
    """Feed values until there are no more, or the answer is over."""
    work, end = asyncio.ensure_future(feed(sink)), asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait((work, end), return_when=asyncio.FIRST_COMPLETED)
        if not over.is_set():
            await work
    finally:
        await stop(work, end)


def _failure(error: SaxError) -> bytes:
    return event(problems.openai_error(problems.describe(error)))
