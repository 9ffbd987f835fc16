"""Calls of MCP servers, and what their spans say."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from http_gateway.access.record import RequestRecord
from http_gateway.access.request_span import RequestSpan
from http_gateway.mcp.calls import McpCalls, NamedServer
from http_gateway.mcp.servers import McpServers
from sax.tracing.trace_context import TraceContext
from tests.recorded_spans import RecordedSpans
from tests.sax.mcp.adding_server import URL, AddingServer


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
