"""Sessions with an MCP server, whose answers come as JSON or as events."""

from __future__ import annotations

import httpx
import pytest

from http_gateway.mcp.servers import McpServers, read_mcp_servers
from sax.errors import PermissionDenied
from sax.mcp.session import McpFailed, McpLimits, McpOutcome
from tests.each_case import each_case
from tests.sax.mcp.adding_server import ADD, FAIL, URL, AddingServer


def servers(server: AddingServer, limits: McpLimits | None = None) -> McpServers:
    return McpServers(
        urls=frozenset([URL]), limits=limits or McpLimits(), transport=server.transport
    )


@each_case("streams", [False, True])
async def test_tools_are_listed_and_called(streams: bool) -> None:
    server = AddingServer(streams=streams)
    async with servers(server).session(URL, {"x-key": "k"}) as session:
        assert await session.tools() == [ADD, FAIL]
        assert await session.call("add", {"a": 1, "b": 2}) == McpOutcome("3")
        assert await session.call("fail", {}) == McpOutcome("it is broken", failed=True)
        with_image = await session.call("add", {"a": 1, "image": 0})
        assert with_image.text.startswith("1\n[a part that is no text")
    assert server.closed == 1
    assert [body["method"] for body in server.bodies][:2] == [
        "initialize",
        "notifications/initialized",
    ]
    assert all(headers["x-key"] == "k" for headers in server.headers)
    assert server.headers[2]["mcp-session-id"] == "s1"
    assert server.headers[2]["mcp-protocol-version"] == "2025-06-18"


async def test_what_a_server_does_wrong_is_told_in_words() -> None:
    server = AddingServer()
    async with servers(server).session(URL, {}) as session:
        with pytest.raises(McpFailed, match="tools/call failed: no tools/call"):
            await session.call("none", {})
    async with servers(server, McpLimits(tools=1)).session(URL, {}) as session:
        with pytest.raises(McpFailed, match="more than 1 tools"):
            await session.tools()
    server.padding = "x" * 2000
    with pytest.raises(McpFailed, match="more than 1000 bytes"):
        async with servers(server, McpLimits(bytes=1000)).session(URL, {}):
            pass
    server.status = 302
    with pytest.raises(McpFailed, match="with status 302"):
        async with servers(server).session(URL, {}):
            pass


async def test_a_server_that_cannot_be_reached_or_is_slow_is_told() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    async def sleep(request: httpx.Request) -> httpx.Response:
        import asyncio

        await asyncio.sleep(10)
        return httpx.Response(200)

    for handler, words in (
        (refuse, "did not answer initialize: refused"),
        (sleep, "within 0.01 s"),
    ):
        found = McpServers(limits=McpLimits(seconds=0.01), transport=httpx.MockTransport(handler))
        with pytest.raises(McpFailed, match=words):
            async with found.session(URL, {}):
                pass


def test_only_what_is_listed_is_called() -> None:
    found = McpServers(urls=read_mcp_servers(f" {URL}, http://127.0.0.1:1/x"))
    found.check(URL, "at")
    for url in (f"{URL}/other", "https://mcp.example.com", "http://127.0.0.1:1/"):
        with pytest.raises(PermissionDenied, match="--mcp_servers"):
            found.check(url, "at")
    for text in ("mcp.example.com", "ftp://a/b", "https://u:p@host/"):
        with pytest.raises(ValueError, match="--mcp_servers"):
            read_mcp_servers(text)
