"""The page's way to MCP servers: only those that the operator allows."""

from __future__ import annotations

import httpx

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from http_gateway.mcp.servers import McpServers
from tests.http_gateway.fake_cell import FakeCell
from tests.sax.mcp.adding_server import URL, AddingServer


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
