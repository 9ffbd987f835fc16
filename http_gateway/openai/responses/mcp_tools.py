"""Tools of MCP servers in /v1/responses: the entries of a body, what servers list, and the calls
that a client approved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from http_gateway.mcp import McpCalls, NamedServer
from http_gateway.openai.responses.items import Item, ItemIds
from http_gateway.openai.responses.open_item import MCP_CALL, MCP_REQUEST, call_made
from http_gateway.openai.responses.tools import CalledTool
from http_gateway.openai.tools import (
    called_name,
    object_at,
    read_description,
    read_name,
    refuse_others,
)
from sax.chat import Tool
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

_APPROVALS = ("always", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer(NamedServer):
    """A server as a body of /v1/responses names it."""

    asks: frozenset[str] | None  # those whose calls need approval; None: all but `free`
    free: frozenset[str] = frozenset()

    def needs_approval(self, name: str) -> bool:
        return name not in self.free if self.asks is None else name in self.asks


def read_server(entry: Mapping[str, object], at: str) -> McpServer:
    """Read an entry of the type mcp. Raises InvalidRequest or UnsupportedParameter."""
    parts = {name: value for name, value in entry.items() if name != "type"}
    label = read_name(parts.pop("server_label", None), at)
    url = parts.pop("server_url", None)
    if not isinstance(url, str):
        raise UnsupportedParameter(
            f"{at}.server_url is {quoted(url)}: send the URL of a server; connectors are not here",
            param=f"{at}.server_url",
        )
    read_description(parts.pop("server_description", None), at)  # of the list of tools, for people
    headers = _headers(parts.pop("headers", None), parts.pop("authorization", None), at)
    allowed = _names(parts.pop("allowed_tools", None), f"{at}.allowed_tools")
    asks, free = _approval(parts.pop("require_approval", None), f"{at}.require_approval")
    refuse_others(parts, at)
    return McpServer(
        label=label,
        url=url,
        at=at,
        url_at=f"{at}.server_url",
        headers=headers,
        allowed=allowed,
        asks=asks,
        free=free,
    )


def _headers(given: object, token: object, at: str) -> dict[str, str]:
    headers = object_at({} if given is None else given, f"{at}.headers")
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    row = field(RequestRoute.RESPONSES, "tools.headers")
    row.check(headers, f"{at}.headers")
    for name, value in headers.items():
        good = isinstance(value, str) and value.isascii() and value.isprintable()
        if not good or not name.replace("-", "").isalnum() or not name.isascii():
            raise InvalidRequest(
                f"{at}.headers: send names of letters, digits and dashes, and plain texts",
                param=f"{at}.headers",
            )
    return cast("dict[str, str]", headers)


def _names(value: object, at: str) -> frozenset[str] | None:
    """Read a list of names, or an object that holds one. None: it is not there."""
    if value is None:
        return None
    if isinstance(value, dict):
        parts = object_at(cast("dict[str, object]", value), at)
        value = parts.pop("tool_names", None)
        refuse_others(parts, at)
        at = f"{at}.tool_names"
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"{at}: send a list of names of tools", param=at)
    return frozenset(map(str, names))


def _approval(value: object, at: str) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the tools that need approval, None for all but the others."""
    if value is None or value == "always":
        return None, frozenset()
    if value == "never":
        return frozenset(), frozenset()
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at}: send {' or '.join(_APPROVALS)}, or an object", param=at)
    parts = object_at(cast("dict[str, object]", value), at)
    asks, free = (_names(parts.pop(name, None), f"{at}.{name}") for name in _APPROVALS)
    refuse_others(parts, at)
    return asks, free or frozenset()


def listed_item(server: McpServer, tools: list[dict[str, Any]], id: str) -> Item:
    """Return the item that lists a server's tools. Raises InvalidRequest for a wrong one."""
    told = [
        {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "input_schema": tool.get("inputSchema") or {"type": "object"},
            "annotations": tool.get("annotations"),
        }
        for tool in tools
    ]
    return {
        "id": id,
        "type": "mcp_list_tools",
        "status": "completed",
        "server_label": server.label,
        "tools": told,
        "error": None,
    }


def offered_by(server: McpServer, item: Mapping[str, Any]) -> list[tuple[Tool, CalledTool]]:
    """Return the tools of a list as the model is offered them. Raises InvalidRequest."""
    made: list[tuple[Tool, CalledTool]] = []
    for tool in cast("list[dict[str, Any]]", item.get("tools") or []):
        name = read_name(tool.get("name"), server.at)
        if not server.offers(name):
            continue
        schema = json.dumps(tool.get("input_schema") or {"type": "object"}, ensure_ascii=False)
        field(RequestRoute.RESPONSES, "tools.parameters").check_text(schema, server.at)
        full = read_name(called_name(name, server.label), server.at)
        about = read_description(tool.get("description"), server.at)
        told = CalledTool(name, server=server.label, approval=server.needs_approval(name))
        made.append((Tool(full, about, schema), told))
    return made


class OfferedServers:
    """The MCP servers of one response: their lists of tools, and approved calls."""

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
