"""OpenAI's /v1/responses: answers as items, kept for a while if the gateway has a store."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.openai.responses.answer import (
    ResponseAnswer,
    ResponseBody,
    ResponseDeleted,
    ResponseItemList,
    ResponseStreamEvent,
)
from http_gateway.openai.responses.bodies import ID, RESPONSE
from http_gateway.openai.responses.conversation import to_conversation
from http_gateway.openai.responses.items import Item, listed, to_items
from http_gateway.openai.responses.schema import ResponseQuery, ResponseRequest
from http_gateway.openai.responses.stored import StoredResponse, StoredResponses
from http_gateway.openai.routes import generate_requests
from http_gateway.openai.stored import PageQuery, page_of
from http_gateway.openai.whole import ended_early
from http_gateway.openapi import (
    ALWAYS,
    JSON,
    WITH_MODEL,
    EventKinds,
    OpenAiError,
    operation,
    query_of,
)
from http_gateway.problems import describe
from http_gateway.streams.sse import Ending, EventSource, EventStream, Script
from sax.errors import InvalidRequest, SaxError
from sax.fields.field import RequestRoute
from sax.types import GenerateRequest, TokenChunk

_told = partial(operation, errors=OpenAiError)
_STORED = (*ALWAYS, 400, 404)
_CREATE = _told(
    ResponseBody, statuses=WITH_MODEL, body=RESPONSE, events=EventKinds(ResponseStreamEvent)
)
_GET = _told(ResponseBody, statuses=_STORED, parameters=[ID, *query_of(ResponseQuery)])
_ITEMS = _told(ResponseItemList, statuses=_STORED, parameters=[ID, *query_of(PageQuery)])
_DELETE = _told(ResponseDeleted, statuses=_STORED, parameters=[ID])
_CANCEL = _told(ResponseBody, statuses=_STORED, parameters=[ID])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseJob:
    """One request to /v1/responses, ready to be asked."""

    request: GenerateRequest
    answer: ResponseAnswer
    context: list[Item]  # input items, those of earlier responses first
    keep: bool
    limit_s: float


class ResponseRoutes:
    def __init__(self, backend: Backend, stored: StoredResponses) -> None:
        self._backend = backend
        self._stored = stored

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/v1/responses", tags=["openai"])
        add = router.add_api_route
        add("", self.create, methods=["POST"], **_CREATE)
        add("/{response_id}", self.get, methods=["GET"], **_GET)
        add("/{response_id}", self.delete, methods=["DELETE"], **_DELETE)
        add("/{response_id}/input_items", self.input_items, methods=["GET"], **_ITEMS)
        add("/{response_id}/cancel", self.cancel, methods=["POST"], **_CANCEL)
        return router

    async def create(self, request: Request) -> Response:
        """Answer a text or a list of items, streamed or not."""
        raw = await read_body(request, RequestRoute.RESPONSES)
        body = ResponseRequest.model_validate_json(raw)
        body.check()
        job = await self._job(request, body)
        return self._stream(request, job) if body.stream else await self._complete(request, job)

    async def get(self, request: Request) -> Response:
        """Return a stored response."""
        ResponseQuery.model_validate(dict(request.query_params)).check()
        return _json((await self._kept(request)).response)

    async def delete(self, request: Request) -> Response:
        """Delete a stored response."""
        id = request.path_params["response_id"]
        await self._stored.delete(id)
        return _json({"id": id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        """List the items that a stored response answers, the newest first."""
        query = PageQuery.model_validate(dict(request.query_params))
        return _json(page_of((await self._kept(request)).input, query))

    async def cancel(self, request: Request) -> Response:
        """Refuse: responses are complete when they are stored."""
        await self._kept(request)
        raise InvalidRequest(
            "only a response in the background can be cancelled, and this one is complete; to end "
            "one that is being generated, close its connection",
            param="response_id",
        )

    async def _kept(self, request: Request) -> StoredResponse:
        return await self._stored.get(request.path_params["response_id"])

    async def _job(self, request: Request, body: ResponseRequest) -> ResponseJob:
        if body.store:
            self._stored.check("store")
        earlier = await self._earlier(body)
        messages = await self._backend.with_images(
            to_conversation(body.instructions or "", listed(body.input), earlier), "input"
        )
        id, keep = self._stored.new_id(), self._stored.on and body.store is not False
        model_id = await self._backend.catalog.resolve(body.model)
        (asked,) = generate_requests(id, model_id, (messages,), body, body.options)
        head = head_of(body, id, int(time.time()), store=keep)
        return ResponseJob(
            request=asked,
            answer=ResponseAnswer(head, body.shape()),
            context=[*earlier, *to_items(listed(body.input))],
            keep=keep,
            limit_s=self._backend.limit_s(request, body.timeout),
        )

    async def _earlier(self, body: ResponseRequest) -> list[Item]:
        """Return the items of the conversation so far."""
        if not body.previous_response_id:
            return []
        return await self._stored.conversation(body.previous_response_id, "previous_response_id")

    async def _complete(self, request: Request, job: ResponseJob) -> Response:
        waiting = [self._backend.on_first_token(request)]

        def read(chunk: TokenChunk) -> None:
            if waiting:
                waiting.pop()()
            job.answer.read(chunk)

        try:
            await self._backend.run(request, self._ask(job, read))
        finally:
            self._count(job)
        return _json(job.answer.whole())

    def _stream(self, request: Request, job: ResponseJob) -> Response:
        def end(ending: Ending) -> None:
            self._count(job)
            self._backend.note_end(request, ending)

        script = Script(
            closing=job.answer.closing,
            failure=partial(_failure, job.answer),
            on_first=self._backend.on_first_token(request),
            on_end=end,
        )
        return EventStream([EventSource(partial(self._ask, job), job.answer.encode)], script)

    async def _ask(self, job: ResponseJob, sink: Callable[[TokenChunk], None]) -> None:
        """Read the answer to its end, and keep it before that is told."""
        await self._backend.generate_to(job.request, sink, job.limit_s)
        if not job.answer.finished:
            raise ended_early()
        if job.keep:
            await self._stored.put(StoredResponse(job.answer.whole(), job.context))

    def _count(self, job: ResponseJob) -> None:
        self._backend.count(job.answer.prompt_tokens, job.answer.completion_tokens)


def _failure(answer: ResponseAnswer, error: SaxError) -> bytes:
    return answer.failure(describe(error))


def _json(body: Any) -> Response:
    return Response(msgspec.json.encode(body), media_type=JSON)


def head_of(body: ResponseRequest, id: str, created: int, *, store: bool) -> dict[str, Any]:
    chat = body.options
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.effort, "summary": None},
        "service_tier": "default",
        "store": store,
        "temperature": _number(body, "temperature"),
        "text": {"format": body.format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or None,
                "parameters": json.loads(tool.parameters) if tool.parameters else None,
                "strict": tool.strict,
            }
            for tool in chat.tools
        ],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _number(body, "top_p"),
        "truncation": "disabled",
        **{name: (body.model_extra or {}).get(name) for name in _LABELS},
    }


def _number(body: ResponseRequest, name: str) -> float | None:
    """Return what was asked for; None: the model's own default."""
    value = getattr(body, name)
    return None if value is None else float(value)


_LABELS = ("user", "safety_identifier", "prompt_cache_key")
