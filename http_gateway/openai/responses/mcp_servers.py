"""OfferedServers: the MCP servers of one response, their lists of tools, and approved calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from http_gateway.mcp.calls import McpCalls
from http_gateway.openai.responses.items import Item, ItemIds
from http_gateway.openai.responses.mcp_tools import McpServer, listed_item, offered_by
from http_gateway.openai.responses.open_item import MCP_CALL, MCP_REQUEST, call_made
from http_gateway.openai.responses.tools import CalledTool
from sax.chat import Tool


class OfferedServers:
    def __init__(self, calls: McpCalls, named: Sequence[McpServer], ids: ItemIds) -> None:
        self._ids = ids
        self._calls = calls
        self._named = named

    async def tools(
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
        for server in self._named:
            if server.label not in lists:
                id = self._ids.new("mcp_list_tools")
                made = listed_item(server, await self._calls.tools(server), id)
                lists[server.label] = made
                fresh.append(dict(made))
            tools += offered_by(server, lists[server.label])
        return fresh, tools

    async def approved(self, items: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Make the calls that the client has approved, and return them as items."""
        asked = {str(item.get("id")): item for item in items if item.get("type") == MCP_REQUEST}
        made = {item.get("approval_request_id") for item in items if item.get("type") == MCP_CALL}
        found: list[Item] = []
        for item in items:
            id = str(item.get("approval_request_id"))
            answer = item.get("type") == "mcp_approval_response" and item.get("approve")
            if answer and id in asked and id not in made:
                found.append(await self._approved(asked[id], id))
        return found

    async def _approved(self, request: Mapping[str, Any], id: str) -> Item:
        told = {name: request.get(name) for name in ("server_label", "name", "arguments")}
        call = {"id": self._ids.new(MCP_CALL), "type": MCP_CALL, **told, "approval_request_id": id}
        outcome = await self._calls.call(
            str(told["server_label"]), str(told["name"]), str(told["arguments"] or "{}")
        )
        return call_made(call, outcome)
