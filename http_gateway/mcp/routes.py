"""/mcp/servers, /mcp/tools and /mcp/call: the page's way to the MCP servers that the operator
allows, for calls of tools that a person has seen first."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from http_gateway.body import read_body
from http_gateway.mcp.calls import McpCalls, NamedServer
from http_gateway.mcp.servers import McpServers
from http_gateway.openapi import ALWAYS, JSON, WITH_BODY, RequestBody, operation
from sax.fields.field import RequestRoute

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

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

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
