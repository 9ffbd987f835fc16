"""Anthropic's routes: /v1/messages and /v1/messages/count_tokens.

Each decodes the request, calls the cell and encodes the reply. `anthropic-version` is accepted and
changes nothing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET
from starlette.responses import Response

from http_gateway import problems
from http_gateway.access import RequestRecord
from http_gateway.anthropic.bodies import COUNT, MESSAGE
from http_gateway.anthropic.content import listed_tools
from http_gateway.anthropic.context_edits import AppliedEdit, edited
from http_gateway.anthropic.mcp_servers import offered_by
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
    Served,
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
from http_gateway.chat_answer import ChatAnswering, ChatQuestion, ChatStream, renamed, with_hints
from http_gateway.mcp import Made, McpCalls, McpServers, run_rounds
from http_gateway.openai.tools import check_tools, known_tool
from http_gateway.openapi import JSON, WITH_MODEL, AnthropicError, EventKinds, operation
from http_gateway.sse import Feed, named_event
from sax.chat import Tool
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from sax.types import ChatOptions, GenerateRequest, Message, TokenChunk

_told = partial(operation, errors=AnthropicError, statuses=WITH_MODEL)
_EVENTS = EventKinds(
    MessageStart, StreamPing, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop,
    AnthropicError,
)  # fmt: skip
_MESSAGE = _told(AnthropicMessage, body=MESSAGE, events=_EVENTS)
_COUNT = _told(TokenCount, body=COUNT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicOffer:
    """The tools of one request, those of MCP servers with them."""

    chat: ChatOptions
    served: Served
    calls: McpCalls | None  # None: nothing is called here


class AnthropicRoutes:
    def __init__(self, backend: Backend, mcp: McpServers) -> None:
        self._backend = backend
        self._mcp = mcp
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
        offer = await self._offer(body)
        sent = await self._backend.with_images(body.prompt)
        prompt, edits = await self._edited(request, body, model_id, sent, offer.chat)
        made = MessageAnswer(
            f"msg_{uuid.uuid4().hex}",
            body.model,
            replace(body.shape(), tools=offer.chat.callable_tools),
            max_tokens=body.max_tokens,
            thinking_shown=body.thoughts.shown,
            context=UNSET if body.context_management is None else ContextManagement(edits),
            served=offer.served,
        )
        asked = self._asked(body, model_id, prompt, offer.chat, made.id)
        feed = self._feed(request, asked, made, offer.calls)
        if body.stream:
            style = ChatStream(
                encode=made.encode, closing=made.closing, failure=_failure, headers=_request_id()
            )
            return self._answering.stream(request, feed, made.answer, style)
        await self._answering.read(request, feed, made.answer, made.add)
        return Response(made.body(), headers=_request_id(), media_type=JSON)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens of a conversation as the model reads it."""
        raw = await read_body(request, RequestRoute.COUNT_TOKENS)
        body = CountRequest.model_validate_json(raw)
        body.check()
        model_id = await self._backend.catalog.resolve(body.model)
        sent = await self._backend.with_images(body.prompt)
        chat = (await self._offer(body)).chat
        before = await self._count(request, chat, model_id, sent)
        reply: TokenCount = {"input_tokens": before}
        if body.edits:
            prompt, _ = await self._edited(request, body, model_id, sent, chat)
            after = await self._count(request, chat, model_id, prompt)
            reply = {"input_tokens": after, "context_management": {"original_input_tokens": before}}
        return Response(msgspec.json.encode(reply), headers=_request_id(), media_type=JSON)

    async def _offer(self, body: AnthropicFields) -> AnthropicOffer:
        """Return the tools of a request; those of MCP servers are asked for."""
        if not body.servers:
            return AnthropicOffer(chat=body.options, served={}, calls=None)
        calls = McpCalls(self._mcp, body.servers)
        calls.check()
        listed = listed_tools(body.messages)
        found: list[tuple[Tool, tuple[str, str]]] = []
        for server in body.servers:
            listing = server.pinned if server.pinned is not None else listed.get(server.label)
            if listing is None:
                listing = await calls.tools(server)
            found += offered_by(server, listing)
        tools = (*body.options.tools, *(tool for tool, _ in found))
        check_tools(tools, "tools[{}]")
        if body.options.tool_name:
            known_tool(body.options.tool_name, tools)
        served = {tool.name: place for tool, place in found}
        return AnthropicOffer(chat=replace(body.options, tools=tools), served=served, calls=calls)

    async def _edited(
        self,
        request: Request,
        body: AnthropicFields,
        model_id: str,
        prompt: tuple[Message, ...],
        options: ChatOptions,
    ) -> tuple[tuple[Message, ...], list[AppliedEdit]]:
        async def count(chat: tuple[Message, ...]) -> int:
            return await self._count(request, options, model_id, chat)

        return await edited(body.edits, prompt, count)

    async def _count(
        self,
        request: Request,
        options: ChatOptions,
        model_id: str,
        prompt: tuple[Message, ...],
    ) -> int:
        """Return the tokens of a prompt as the model reads it. Raises SaxError."""
        client, limit_s = self._backend.client, self._backend.limit_s(request)

        async def tokens(chat: ChatOptions) -> int:
            return len((await client.tokenize(model_id, prompt, limit_s, chat=chat))[0])

        try:
            return await self._backend.run(request, with_hints(options, HINTS, tokens))
        except SaxError as error:
            raise renamed(error, NAMES) from error

    def _asked(
        self,
        body: MessageRequest,
        model_id: str,
        prompt: tuple[Message, ...],
        chat: ChatOptions,
        reply_id: str,
    ) -> GenerateRequest:
        return GenerateRequest(
            model_id=model_id,
            prompt=prompt,
            sampling=body.sampling(),
            chat=chat,
            request_id=RequestRecord.current().id_in_cell(reply_id),
            session=body.session,
        )

    def _feed(
        self, request: Request, asked: GenerateRequest, made: MessageAnswer, calls: McpCalls | None
    ) -> Feed[TokenChunk | Made]:
        limit_s = self._backend.limit_s(request)
        question = ChatQuestion(generate=asked, limit_s=limit_s, names=NAMES, hints=HINTS)
        if calls is None:
            return self._answering.feed(question)
        ask = partial(self._answering.ask, question)
        return partial(run_rounds, asked, made, ask, calls, limit_s)


def _request_id() -> dict[str, str]:
    """Return the request's id under the name that Anthropic's clients read."""
    return {"request-id": RequestRecord.current().request_id}


def _failure(error: SaxError) -> bytes:
    return named_event("error", problems.anthropic_error(problems.describe(error)))
