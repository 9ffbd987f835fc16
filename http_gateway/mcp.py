"""MCP servers that the operator allows: sessions and calls, answers in rounds with calls between,
and the page's routes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, Protocol, TypedDict, cast

import httpx
import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from http_gateway.access import RequestRecord
from http_gateway.body import read_body
from http_gateway.openapi import ALWAYS, JSON, WITH_BODY, RequestBody, operation
from sax.chat import ToolChoice
from sax.errors import DeadlineExceeded, InvalidRequest, PermissionDenied
from sax.fields.field import RequestRoute
from sax.format import quoted
from sax.mcp import HttpTransport, McpFailed, McpLimits, McpOutcome, McpSession
from sax.types import GenerateRequest, Message, TokenChunk


def read_mcp_servers(text: str) -> frozenset[str]:
    """Return the URLs of a comma-separated list. Raises ValueError."""
    urls = frozenset(part.strip() for part in text.split(",") if part.strip())
    for url in urls:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as exc:
            raise ValueError(f"--mcp_servers {url!r} is no URL: {exc}") from exc
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
            raise ValueError(
                f"--mcp_servers {url!r}: give URLs such as https://mcp.example.com/mcp, without "
                "names and passwords"
            )
    return urls


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServers:
    urls: frozenset[str] = frozenset()
    limits: McpLimits = McpLimits()
    transport: httpx.AsyncBaseTransport | None = field(default=None)  # None: the network

    def check(self, url: str, param: str) -> None:
        """Raise PermissionDenied for a server that is not allowed."""
        if url not in self.urls:
            raise PermissionDenied(
                f"{param} is {quoted(url)}, which this gateway does not call: call it yourself, or "
                "ask the operator to list exactly this URL in --mcp_servers",
                param=param,
            )

    @contextlib.asynccontextmanager
    async def session(self, url: str, headers: Mapping[str, str]) -> AsyncGenerator[McpSession]:
        """Open a session for the time of the block. Raises McpFailed."""
        # Redirects are not followed: only what is listed is called.
        async with httpx.AsyncClient(
            transport=self.transport, timeout=self.limits.seconds, trust_env=False
        ) as http:
            session = McpSession(HttpTransport(http, url, headers, self.limits), self.limits)
            try:
                await session.open()
                yield session
            finally:
                await session.close()


MOST_CALLS = 64  # of one answer, unless the request has a lower limit


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedServer:
    """A server as a request names it."""

    label: str
    url: str
    at: str  # the path of its entry
    url_at: str  # the path of its URL
    headers: dict[str, str]
    allowed: frozenset[str] | None = None  # names of its tools; None: all
    denied: frozenset[str] = frozenset()

    def offers(self, name: object) -> bool:
        return (self.allowed is None or name in self.allowed) and name not in self.denied


class McpCalls:
    """The MCP servers that one request names, and the calls that are made there."""

    def __init__(
        self, servers: McpServers, named: Sequence[NamedServer], most: int | None = None
    ) -> None:
        """most: calls that may be made; never more than MOST_CALLS."""
        self._servers = servers
        self._named = {server.label: server for server in named}
        self._most = min(most or MOST_CALLS, MOST_CALLS)
        self._made = 0

    @property
    def full(self) -> bool:
        """True if no further call may be made."""
        return self._made >= self._most

    def check(self) -> None:
        """Raise PermissionDenied for a server that is not allowed."""
        for server in self._named.values():
            self._servers.check(server.url, server.url_at)

    async def tools(self, server: NamedServer) -> list[dict[str, Any]]:
        """Return the tools that a server offers, as it lists them. Raises InvalidRequest."""
        try:
            async with self._servers.session(server.url, server.headers) as session:
                return [each for each in await session.tools() if server.offers(each.get("name"))]
        except McpFailed as exc:
            raise InvalidRequest(
                f"{server.at}: the MCP server {server.label} cannot be used: {exc}",
                param=server.url_at,
            ) from exc

    async def call(self, label: str, name: str, arguments: str) -> McpOutcome:
        """Make a call; what goes wrong is its outcome. arguments: JSON."""
        if self.full:
            return _failed(f"not called: a response may make {self._most} calls")
        self._made += 1
        server = self._named.get(label)
        if server is None or not server.offers(name):
            return _failed(f"{name} is no tool of this request's servers")
        span = RequestRecord.current().span
        done = span.tool(name, label) if span is not None else None
        outcome = None  # of a call that was cancelled
        try:
            outcome = await self._outcome(server, name, arguments)
            return outcome
        finally:
            if done is not None:
                done("failed" if outcome is not None and outcome.failed else "")

    async def _outcome(self, server: NamedServer, name: str, arguments: str) -> McpOutcome:
        try:
            given = _arguments(arguments or "{}")
            async with self._servers.session(server.url, server.headers) as session:
                return await session.call(name, given)
        except McpFailed as exc:
            return _failed(str(exc))


def _failed(why: str) -> McpOutcome:
    return McpOutcome(why, failed=True)


def _arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise McpFailed(f"its arguments are no JSON object: {exc}") from exc


MOST_ROUNDS = 16

Made = dict[str, McpOutcome]  # by the ids of the calls
Ask = Callable[[GenerateRequest, Callable[[TokenChunk], None]], Awaitable[None]]
Sink = Callable[[TokenChunk | Made], None]


class WaitingCall(NamedTuple):
    server: str  # its label
    name: str
    arguments: str  # JSON


class CallingAnswer(Protocol):
    """An answer that reads chunks, and what calls gave."""

    @property
    def completion_tokens(self) -> int: ...

    @property
    def waiting(self) -> Mapping[str, WaitingCall]:
        """The calls that wait to be made, by their ids."""
        ...

    @property
    def goes_on(self) -> bool:
        """True if the model answers again once its calls are made."""
        ...

    def end_round(self) -> tuple[Message, ...]:
        """Return what the model said in this round, and what its calls gave."""
        ...

    def conclude(self, reason: str) -> None:
        """End an answer that does not go on after its calls. reason: of the end, as of a chunk."""
        ...


async def run_rounds(
    request: GenerateRequest,
    answer: CallingAnswer,
    ask: Ask,
    calls: McpCalls,
    limit_s: float,
    sink: Sink,
) -> None:
    """Read an answer to its end, and make its calls. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout(limit_s):
            await _run(request, answer, ask, calls, sink)
    except TimeoutError as exc:
        raise DeadlineExceeded(
            f"the answer and its calls took longer than {limit_s:g} s: allow more time, or offer "
            "fewer tools"
        ) from exc


async def _run(
    request: GenerateRequest, answer: CallingAnswer, ask: Ask, calls: McpCalls, sink: Sink
) -> None:
    most_tokens, last = request.sampling.max_tokens, False
    for number in range(MOST_ROUNDS):
        await ask(request, sink)
        waiting = answer.waiting
        if not waiting:
            return
        for id, call in waiting.items():
            sink({id: await calls.call(*call)})
        goes_on, said = answer.goes_on, answer.end_round()
        left = None if most_tokens is None else most_tokens - answer.completion_tokens
        if last or not goes_on:
            break
        if left is not None and left <= 0:
            return answer.conclude("length")
        last = calls.full or number == MOST_ROUNDS - 2
        request = _continued(request, said, left, calls=not last)
    answer.conclude("stop")


def _continued(
    request: GenerateRequest, said: tuple[Message, ...], left: int | None, *, calls: bool
) -> GenerateRequest:
    """Return the request that goes on after what was said. left: tokens. calls: there may be
    more."""
    choice = ToolChoice.AUTO if calls else ToolChoice.NONE
    return replace(
        request,
        prompt=(*cast("tuple[Message, ...]", request.prompt), *said),
        sampling=replace(request.sampling, max_tokens=left),
        chat=replace(
            request.chat,
            tool_choice=choice,
            tool_name="",
            add_generation_prompt=True,
            continue_final_message=False,
        ),
        request_id=f"{request.request_id}+",
    )


_ROUTE = RequestRoute.RESPONSES  # whose requests may hold the same calls


class ServerList(TypedDict):
    servers: list[str]


class ToolList(TypedDict):
    """The tools of a server, as it lists them."""

    tools: list[dict[str, Any]]


class CallOutcome(TypedDict):
    """Result of a call; if it failed, `text` is the reason."""

    text: str
    failed: bool


class McpServerBody(BaseModel):
    """/mcp/tools."""

    model_config = ConfigDict(defer_build=True, extra="forbid", strict=True, frozen=True)

    server_url: Annotated[str, Field(max_length=2000)]

    @property
    def named(self) -> NamedServer:
        url, at = self.server_url, "server_url"
        return NamedServer(label=url, url=url, at=at, url_at=at, headers={})


class McpCallBody(McpServerBody):
    """/mcp/call. `arguments`: the text of a JSON object."""

    name: Annotated[str, Field(max_length=200)]
    arguments: Annotated[str, Field(max_length=1 << 20)] = "{}"


class McpRoutes:
    def __init__(self, servers: McpServers) -> None:
        self._servers = servers

    def router(self) -> APIRouter:
        router = APIRouter(tags=["ops"])
        listed = operation(ServerList, statuses=ALWAYS)
        router.add_api_route("/mcp/servers", self.servers, methods=["GET"], **listed)
        for path, route, reply, body in (
            ("/mcp/tools", self.tools, ToolList, McpServerBody),
            ("/mcp/call", self.call, CallOutcome, McpCallBody),
        ):
            told = RequestBody(model=body, route=_ROUTE)
            described = operation(reply, statuses=(*WITH_BODY, 422), body=told)
            router.add_api_route(path, route, methods=["POST"], **described)
        return router

    async def servers(self) -> Response:
        """List the URLs of the MCP servers that this gateway may call (`--mcp_servers`)."""
        return _reply(ServerList(servers=sorted(self._servers.urls)))

    async def tools(self, request: Request) -> Response:
        """List the tools of one of these servers."""
        body = McpServerBody.model_validate_json(await read_body(request, _ROUTE))
        calls = self._calls(body)
        return _reply(ToolList(tools=await calls.tools(body.named)))

    async def call(self, request: Request) -> Response:
        """Call a tool of one of these servers."""
        body = McpCallBody.model_validate_json(await read_body(request, _ROUTE))
        outcome = await self._calls(body).call(body.server_url, body.name, body.arguments)
        return _reply(CallOutcome(text=outcome.text, failed=outcome.failed))

    def _calls(self, body: McpServerBody) -> McpCalls:
        """Raises PermissionDenied for a server that is not listed."""
        calls = McpCalls(self._servers, [body.named])
        calls.check()
        return calls


def _reply(value: object) -> Response:
    return Response(
        msgspec.json.encode(value), media_type=JSON, headers={"cache-control": "no-store"}
    )
