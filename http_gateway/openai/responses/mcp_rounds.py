"""McpRounds: an answer in rounds; between them the gateway calls MCP servers for the model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from http_gateway.access.record import RequestRecord
from http_gateway.mcp.servers import McpServers
from http_gateway.mcp.session import McpFailed, McpSession
from http_gateway.openai.responses.answer import ResponseAnswer
from http_gateway.openai.responses.conversation import to_conversation
from http_gateway.openai.responses.items import Item, new_item_id
from http_gateway.openai.responses.mcp_tools import McpServer, listed_item, offered_by
from http_gateway.openai.responses.open_item import MCP_CALL, MCP_REQUEST, call_made
from http_gateway.openai.responses.tools import CalledTool
from sax.chat import Tool, ToolChoice
from sax.errors import InvalidRequest
from sax.types import GenerateRequest, Message, TokenChunk

MOST_ROUNDS = 16
MOST_CALLS = 64  # of one response, unless max_tool_calls is less

Made = dict[int, Item]  # calls by their places in the output
Ask = Callable[[GenerateRequest, Callable[[TokenChunk], None]], Awaitable[None]]


class McpRounds:
    """The servers of one request."""

    def __init__(self, servers: McpServers, named: Sequence[McpServer]) -> None:
        self._servers = servers
        self._named = {server.label: server for server in named}
        self.calls = 0  # so far

    def check(self) -> None:
        """Raise PermissionDenied for a server that is not allowed."""
        for server in self._named.values():
            self._servers.check(server.url, f"{server.at}.server_url")

    async def offered(
        self, known: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Item], list[tuple[Tool, CalledTool]]]:
        """Return new lists of tools, and all tools as the model is offered them.

        known: items so far; what they list is not asked for again. Raises InvalidRequest.
        """
        lists = {
            str(item.get("server_label")): item
            for item in known
            if item.get("type") == "mcp_list_tools"
        }
        fresh: list[Item] = []
        tools: list[tuple[Tool, CalledTool]] = []
        for label, server in self._named.items():
            if label not in lists:
                lists[label] = await self._listed(server)
                fresh.append(dict(lists[label]))
            tools += offered_by(server, lists[label])
        return fresh, tools

    async def _listed(self, server: McpServer) -> Item:
        try:
            async with self._session(server) as session:
                return listed_item(server, await session.tools())
        except McpFailed as exc:
            raise InvalidRequest(
                f"{server.at}: the MCP server {server.label} cannot be used: {exc}",
                param=f"{server.at}.server_url",
            ) from exc

    @contextlib.asynccontextmanager
    async def _session(self, server: McpServer) -> AsyncGenerator[McpSession]:
        async with self._servers.session(server.url, server.headers) as session:
            yield session

    async def approved(self, items: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Make the calls that the client has approved, and return them as items."""
        asked = {str(item.get("id")): item for item in items if item.get("type") == MCP_REQUEST}
        made = {item.get("approval_request_id") for item in items if item.get("type") == MCP_CALL}
        found: list[Item] = []
        for item in items:
            id = str(item.get("approval_request_id"))
            answer = item.get("type") == "mcp_approval_response" and item.get("approve")
            if answer and id in asked and id not in made:
                call = {
                    "id": new_item_id(MCP_CALL),
                    "type": MCP_CALL,
                    **{name: asked[id].get(name) for name in ("server_label", "name", "arguments")},
                    "approval_request_id": id,
                }
                found.append(await self._made(call))
        return found

    async def run(
        self,
        request: GenerateRequest,
        answer: ResponseAnswer,
        ask: Ask,
        sink: Callable[[TokenChunk | Made], None],
        most: int | None,
    ) -> None:
        """Read an answer to its end. most: calls that may be made."""
        most, last = min(most or MOST_CALLS, MOST_CALLS), False
        for number in range(MOST_ROUNDS):
            told = len(answer.output) if number else len(answer.first)
            await ask(request, sink)
            if not answer.waiting:
                return
            for index, item in answer.waiting.items():
                sink({index: await self._made(item, most)})
            if last or not answer.goes_on:
                break
            last = self.calls >= most or number == MOST_ROUNDS - 2
            request = _continued(request, answer.output[told:], calls=not last)
        answer.conclude()

    async def _made(self, item: Item, most: int = MOST_CALLS) -> Item:
        """Make a call, and return it with what it gave."""
        if self.calls >= most:
            return call_made(item, None, f"not called: a response may make {most} calls")
        self.calls += 1
        server = self._named.get(str(item.get("server_label")))
        name = str(item.get("name"))
        if server is None or (server.allowed is not None and name not in server.allowed):
            return call_made(item, None, f"{name} is no tool of this request's servers")
        span = RequestRecord.current().span
        done = span.tool(name, server.label) if span is not None else None
        try:
            arguments = _arguments(str(item.get("arguments") or "{}"))
            async with self._session(server) as session:
                outcome = await session.call(name, arguments)
        except McpFailed as exc:
            made = call_made(item, None, str(exc))
        else:
            failed = outcome.text if outcome.failed else None
            made = call_made(item, None if outcome.failed else outcome.text, failed)
        if done is not None:
            done("" if made["error"] is None else "failed")
        return made


def _continued(request: GenerateRequest, said: Sequence[Item], *, calls: bool) -> GenerateRequest:
    """Return the request that goes on after what was said. calls: there may be more."""
    assert isinstance(request.prompt, tuple), "responses are asked for with messages"
    choice = ToolChoice.AUTO if calls else ToolChoice.NONE
    return replace(
        request,
        prompt=cast("tuple[Message, ...]", (*request.prompt, *to_conversation("", said))),
        chat=replace(request.chat, tool_choice=choice, tool_name=""),
        request_id=f"{request.request_id}+",
    )


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise McpFailed(f"its arguments are no JSON object: {exc}") from exc
