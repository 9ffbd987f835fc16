"""MCP servers: sessions, calls and what their spans say, and the page's way to those allowed."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from http_gateway.access import RequestRecord, RequestSpan
from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.mcp import McpCalls, McpServers, NamedServer, read_mcp_servers
from sax.errors import PermissionDenied
from sax.mcp import McpFailed, McpLimits, McpOutcome
from sax.tracing import TraceContext
from tests.each_case import each_case
from tests.http_gateway.fake_cell import FakeCell
from tests.recorded_spans import RecordedSpans
from tests.sax.adding_server import ADD, FAIL, URL, AddingServer


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


class SilentServer(AddingServer):
    """Answers no call of a tool; `asked` is set once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        answered = self.transport
        self.transport = httpx.MockTransport(self._waiting)
        self._answered = answered

    async def _waiting(self, request: httpx.Request) -> httpx.Response:
        if b"tools/call" in request.content:
            self.asked.set()
            await asyncio.Event().wait()
        return await self._answered.handle_async_request(request)


def calls(server: AddingServer) -> McpCalls:
    named = NamedServer(label="math", url=URL, at="tools[0]", url_at="tools[0].url", headers={})
    return McpCalls(McpServers(urls=frozenset([URL]), transport=server.transport), [named])


async def test_a_call_that_is_cancelled_ends_its_span_and_its_session() -> None:
    spans, server = RecordedSpans(), SilentServer()
    record = RequestRecord(span=RequestSpan(spans, TraceContext.root(), None))
    record.enter()
    call = asyncio.create_task(calls(server).call("math", "add", '{"a": 1}'))
    await server.asked.wait()
    assert not spans.all
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (span,) = spans.all
    assert (span.name, span.error) == ("execute_tool add", "")
    assert server.closed == 1


async def test_a_session_that_does_not_open_whole_is_closed() -> None:
    server = AddingServer()

    async def answer(request: httpx.Request) -> httpx.Response:
        if b"notifications/initialized" in request.content:
            return httpx.Response(500)
        return await server.transport.handle_async_request(request)

    broken = McpServers(urls=frozenset([URL]), transport=httpx.MockTransport(answer))
    named = NamedServer(label="math", url=URL, at="tools[0]", url_at="tools[0].url", headers={})
    outcome = await McpCalls(broken, [named]).call("math", "add", "{}")
    assert outcome.failed
    assert server.closed == 1


def gateway(server: AddingServer) -> httpx.AsyncClient:
    mcp = McpServers(urls=frozenset([URL]), transport=server.transport)
    app = create_app(FakeCell(), GatewayConfig(), mcp=mcp)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")


async def test_servers_and_their_tools_are_listed_and_called() -> None:
    async with gateway(AddingServer()) as http:
        assert (await http.get("/mcp/servers")).json() == {"servers": [URL]}
        tools = (await http.post("/mcp/tools", json={"server_url": URL})).json()["tools"]
        assert "add" in [each["name"] for each in tools]
        call = {"server_url": URL, "name": "add", "arguments": '{"a": 2, "b": 40}'}
        assert (await http.post("/mcp/call", json=call)).json() == {"text": "42", "failed": False}
        wrong = (await http.post("/mcp/call", json={**call, "arguments": "["})).json()
        assert wrong["failed"]
        assert "JSON object" in wrong["text"]


async def test_no_other_server_is_asked() -> None:
    server = AddingServer()
    async with gateway(server) as http:
        for path, more in (("/mcp/tools", {}), ("/mcp/call", {"name": "add"})):
            reply = await http.post(path, json={"server_url": "http://10.0.0.1/mcp", **more})
            assert reply.status_code == 403, path
            assert "--mcp_servers" in reply.text
