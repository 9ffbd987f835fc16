"""OpenAI's /v1/responses: answers as items, kept for a while if the gateway has a store."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from http_gateway.backend import Backend
from http_gateway.body import read_body
from http_gateway.mcp import Made, McpCalls, McpServers, run_rounds
from http_gateway.openai.reply import ended_early
from http_gateway.openai.responses.answer import (
    ResponseAnswer,
    ResponseBody,
    ResponseDeleted,
    ResponseItemList,
    ResponseStreamEvent,
)
from http_gateway.openai.responses.background import BackgroundRuns
from http_gateway.openai.responses.bodies import ID, RESPONSE
from http_gateway.openai.responses.conversation import to_conversation
from http_gateway.openai.responses.items import Item, ItemIds, listed, to_items, to_new_items
from http_gateway.openai.responses.kept_conversations import KeptConversations
from http_gateway.openai.responses.mcp_tools import OfferedServers
from http_gateway.openai.responses.schema import ResponseQuery, ResponseRequest
from http_gateway.openai.responses.stored import (
    StoredResponse,
    StoredResponses,
    check_length,
    dereferenced,
)
from http_gateway.openai.responses.tools import LEFT_OUT_HEADER, CalledTool, told_tools
from http_gateway.openai.routes import generate_requests
from http_gateway.openai.stored import PageQuery, page_of
from http_gateway.openai.tools import check_tools
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
from http_gateway.sse import Ending, EventSource, EventStream, Script
from sax.chat import Message
from sax.errors import InvalidRequest, PromptTooLong, SaxError
from sax.fields.field import RequestRoute
from sax.types import ChatOptions, GenerateRequest, TokenChunk

_told = partial(operation, errors=OpenAiError)
_STORED = (*ALWAYS, 400, 404)
_CREATE = _told(
    ResponseBody, statuses=WITH_MODEL, body=RESPONSE, events=EventKinds(ResponseStreamEvent)
)
_GET = _told(ResponseBody, statuses=_STORED, parameters=chain([ID], query_of(ResponseQuery)))
_ITEMS = _told(ResponseItemList, statuses=_STORED, parameters=chain([ID], query_of(PageQuery)))
_DELETE = _told(ResponseDeleted, statuses=_STORED, parameters=[ID])
_CANCEL = _told(ResponseBody, statuses=_STORED, parameters=[ID])


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseJob:
    """One request to /v1/responses, ready to be asked."""

    request: GenerateRequest
    answer: ResponseAnswer
    context: list[Item]  # input items, those of earlier responses first
    keep: bool
    conversation: str | None  # that the answer is added to
    added: list[Item]  # to it before the answer
    limit_s: float
    headers: dict[str, str]  # of the reply
    calls: McpCalls | None  # None: nothing is called here

    def kept(self) -> StoredResponse:
        """Return the response as it is now, to be stored."""
        return StoredResponse(self.answer.whole(), self.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The tools of one request, those of MCP servers with them."""

    chat: ChatOptions
    called: Mapping[str, CalledTool]
    first: list[Item]  # of the output: new lists of tools, and calls that were approved
    calls: McpCalls | None


class ResponseRoutes:
    def __init__(
        self,
        backend: Backend,
        stored: StoredResponses,
        runs: BackgroundRuns,
        conversations: KeptConversations,
        mcp: McpServers,
    ) -> None:
        self._backend = backend
        self._stored = stored
        self._runs = runs
        self._conversations = conversations
        self._mcp = mcp

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
        if body.background:
            return await self._begin(job)
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
        """End a response in the background; one that has ended stays as it is."""
        kept = await self._kept(request)
        if not kept.response["background"]:
            raise InvalidRequest(
                "only a response in the background can be cancelled, and this one is complete; to "
                "end one that is being generated, close its connection",
                param="response_id",
            )
        if kept.running:
            await self._runs.cancel(kept)
        return _json((await self._kept(request)).response)

    async def _kept(self, request: Request) -> StoredResponse:
        return await self._stored.get(request.path_params["response_id"])

    async def _job(self, request: Request, body: ResponseRequest) -> ResponseJob:
        if body.store or body.background:
            self._stored.check("store" if body.store else "background")
        earlier = await self._earlier(body)
        items = await dereferenced(listed(body.input), earlier, self._stored)
        names = ("input", "conversation" if body.conversation_id else "previous_response_id")
        messages = await self._backend.with_images(
            to_conversation(body.instructions or "", items, earlier, names), "input"
        )
        id, keep = self._stored.new_id(), body.store is not False and self._stored.has_room
        model_id = await self._backend.catalog.resolve(body.model)
        ids = ItemIds(id)
        offer = await self._offer(body, [*earlier, *items], ids)
        fitting = messages
        if body.truncation == "auto":
            fitting = await self._fitted(model_id, messages, body, offer.chat)
        prompt = (*fitting, *to_conversation("", offer.first))
        (asked,) = generate_requests(id, model_id, (prompt,), body, offer.chat)
        head = head_of(body, id, int(time.time()), store=keep)
        return ResponseJob(
            request=asked,
            answer=ResponseAnswer(
                head,
                replace(body.shape(), tools=offer.chat.callable_tools),
                offer.called,
                body.style,
                offer.first,
                ids,
            ),
            calls=offer.calls,
            context=[*earlier, *to_items(items)],
            keep=keep,
            conversation=body.conversation_id,
            added=to_new_items(items) if body.conversation_id else [],
            limit_s=self._backend.limit_s(request, body.timeout),
            headers=_headers(body.offered.left_out, len(messages) - len(fitting)),
        )

    async def _offer(
        self, body: ResponseRequest, items: list[Mapping[str, Any]], ids: ItemIds
    ) -> Offer:
        """Return the tools of a request; those of MCP servers are asked for."""
        chat, called = body.options, body.offered.called
        if not body.servers:
            return Offer(chat=chat, called=called, first=[], calls=None)
        calls = McpCalls(self._mcp, body.servers, body.max_tool_calls)
        calls.check()
        servers = OfferedServers(calls, body.servers, ids)
        lists, found = await servers.tools(items)
        tools = (*chat.tools, *(tool for tool, _ in found))
        check_tools(tools, "tools[{}]")
        return Offer(
            chat=replace(chat, tools=tools),
            called={**called, **{tool.name: told for tool, told in found}},
            first=[*lists, *await servers.approved(items)],
            calls=calls,
        )

    async def _fitted(
        self,
        model_id: str,
        messages: tuple[Message, ...],
        body: ResponseRequest,
        chat: ChatOptions,
    ) -> tuple[Message, ...]:
        async def measure(some: tuple[Message, ...]) -> tuple[int, int]:
            ids, context = await self._backend.client.tokenize(model_id, some, chat=chat)
            return len(ids), context

        return await fitted(messages, measure, body.max_output_tokens)

    async def _earlier(self, body: ResponseRequest) -> list[Item]:
        """Return the items of the conversation so far."""
        if body.conversation_id is not None:
            self._conversations.check("conversation")
            items = await self._conversations.items(body.conversation_id, "conversation")
            check_length(items, "conversation")
            return items
        if not body.previous_response_id:
            return []
        return await self._stored.conversation(body.previous_response_id, "previous_response_id")

    async def _begin(self, job: ResponseJob) -> Response:
        """Answer in the background."""
        kept = job.kept()

        async def work() -> None:
            try:
                await self._generate(job, partial(_take, job.answer))
            finally:
                self._count(job)
            await self._extend(job)

        await self._runs.start(kept, work(), job.kept)
        return _json(kept.response, job.headers)

    async def _complete(self, request: Request, job: ResponseJob) -> Response:
        waiting = [self._backend.on_first_token(request)]

        def read(value: TokenChunk | Made) -> None:
            if waiting:
                waiting.pop()()
            _take(job.answer, value)

        try:
            await self._backend.run(request, self._ask(job, read))
        finally:
            self._count(job)
        return _json(job.answer.whole(), job.headers)

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
        source = EventSource(partial(self._ask, job), partial(_encoded, job.answer))
        return EventStream([source], script, job.headers)

    async def _generate(self, job: ResponseJob, sink: Callable[[TokenChunk | Made], None]) -> None:
        """Read the answer to its end, with the calls that are made here."""
        ask = partial(self._backend.generate_to, timeout_s=job.limit_s)
        if job.calls is None:
            return await ask(job.request, sink)
        await run_rounds(job.request, job.answer, ask, job.calls, job.limit_s, sink)

    async def _ask(self, job: ResponseJob, sink: Callable[[TokenChunk | Made], None]) -> None:
        """Read the answer to its end, and keep it before that is told."""
        await self._generate(job, sink)
        await self._extend(job)
        if job.keep:
            await self._stored.put(job.kept())

    async def _extend(self, job: ResponseJob) -> None:
        """Add a whole answer, and what it answers, to its conversation."""
        if not job.answer.finished:
            raise ended_early()
        if job.conversation is not None:
            output: list[Item] = job.answer.whole()["output"]
            await self._conversations.add(job.conversation, [*job.added, *output])

    def _count(self, job: ResponseJob) -> None:
        self._backend.count(job.answer.prompt_tokens, job.answer.completion_tokens)


def _take(answer: ResponseAnswer, value: TokenChunk | Made) -> None:
    if isinstance(value, dict):
        answer.read_made(value)
    else:
        answer.read(value)


def _encoded(answer: ResponseAnswer, value: TokenChunk | Made) -> bytes:
    return answer.encode_made(value) if isinstance(value, dict) else answer.encode(value)


def _failure(answer: ResponseAnswer, error: SaxError) -> bytes:
    return answer.failure(describe(error))


def _headers(left_out: Sequence[str], dropped: int) -> dict[str, str]:
    """left_out: types of tools. dropped: messages that did not fit."""
    told = {LEFT_OUT_HEADER: ", ".join(left_out)} if left_out else {}
    return told | ({DROPPED_HEADER: str(dropped)} if dropped else {})


def _json(body: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), headers=headers, media_type=JSON)


def head_of(body: ResponseRequest, id: str, created: int, *, store: bool) -> dict[str, Any]:
    chat = body.options
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "background": bool(body.background),
        "conversation": {"id": body.conversation_id} if body.conversation_id else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": body.model,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": body.effort, "summary": body.summary},
        "service_tier": "default",
        "store": store,
        "temperature": _number(body, "temperature"),
        "text": {"format": body.format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": told_tools(body.tools or ()),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _number(body, "top_p"),
        "truncation": body.truncation or "disabled",
        **{name: (body.model_extra or {}).get(name) for name in _LABELS},
    }


def _number(body: ResponseRequest, name: str) -> float | None:
    """Return what was asked for; None: the model's own default."""
    value = getattr(body, name)
    return None if value is None else float(value)


_LABELS = ("user", "safety_identifier", "prompt_cache_key")


DROPPED_HEADER = "x-sax-dropped-messages"
_SHARE = 8  # of the context, kept for the answer of a conversation that is cut

Measure = Callable[[tuple[Message, ...]], Awaitable[tuple[int, int]]]


async def fitted(
    messages: tuple[Message, ...], measure: Measure, most_tokens: int | None
) -> tuple[Message, ...]:
    """Return the conversation, or its instructions and the newest turns that fit the context.

    measure: returns the tokens of messages, and those of the context. most_tokens: of the answer;
    None: any. The last turn stays, even where it fits nowhere: the model refuses it.
    """
    if await _fits(messages, measure, 1):
        return messages
    head, turns = divided(messages)
    fewest, most = 1, len(turns)  # turns that are dropped; the last one stays
    while fewest < most:
        middle = (fewest + most) // 2
        if await _fits(_kept(head, turns[middle:]), measure, most_tokens):
            most = middle
        else:
            fewest = middle + 1
    return _kept(head, turns[min(fewest, len(turns) - 1) :])


async def _fits(messages: tuple[Message, ...], measure: Measure, most_tokens: int | None) -> bool:
    try:
        tokens, context = await measure(messages)
    except PromptTooLong:
        return False
    room = min(most_tokens or context // _SHARE, context // 2)
    return tokens + max(room, 1) <= context


def divided(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Return the system's messages at the beginning, and the turns after them.

    Results of calls are of the turn of their calls: neither is dropped without the other.
    """
    begin = next((n for n, each in enumerate(messages) if each.role != "system"), len(messages))
    turns: list[list[Message]] = []
    for message in messages[begin:]:
        if message.role == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return [*messages[:begin]], turns


def _kept(head: Sequence[Message], turns: Sequence[Sequence[Message]]) -> tuple[Message, ...]:
    return (*head, *(message for turn in turns for message in turn))
