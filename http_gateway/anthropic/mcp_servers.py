"""Anthropic's mcp_servers, and the tools of the type mcp_toolset that say which tools they offer.

Without any toolset the older form holds: each server's tool_configuration says it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from http_gateway.anthropic.blocks import check_cache_control
from http_gateway.mcp import NamedServer
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
from sax.fields.table import TOOLS, field
from sax.format import quoted

TOOLSET = "mcp_toolset"
LISTING = "mcp_tool_listing"  # type of a block
_TOKEN = field(RequestRoute.MESSAGES, "mcp_servers.authorization_token")
_SCHEMA = field(RequestRoute.CHAT, "tools.parameters")
Listing = list[dict[str, Any]]  # tools with name, description and input_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicServer(NamedServer):
    pinned: Listing | None = None  # its tools as a toolset lists them; None: the server is asked


def read_servers(
    entries: Sequence[object], tools: Sequence[Mapping[str, object]]
) -> tuple[AnthropicServer, ...]:
    """Return the servers of a request. tools: all of its tools.

    Raises InvalidRequest or UnsupportedParameter naming the part.
    """
    toolsets = {f"tools[{n}]": each for n, each in enumerate(tools) if each.get("type") == TOOLSET}
    servers: dict[str, AnthropicServer] = {}
    for n, entry in enumerate(entries):
        at = f"mcp_servers[{n}]"
        server = _server(object_at(entry, at), at, toolsets=bool(toolsets))
        if server.label in servers:
            raise InvalidRequest(
                f"{at}.name is {server.label} again: give each server its own", param=f"{at}.name"
            )
        servers[server.label] = server
    if not toolsets:
        return tuple(servers.values())
    return tuple(_with_toolsets(servers, toolsets))


def _server(parts: dict[str, Any], at: str, *, toolsets: bool) -> AnthropicServer:
    kind, url = parts.pop("type", None), parts.pop("url", None)
    name, token = read_name(parts.pop("name", None), at), parts.pop("authorization_token", None)
    told = parts.pop("tool_configuration", None)
    refuse_others(parts, at)
    if kind != "url" or not isinstance(url, str):
        raise UnsupportedParameter(
            f'{at}: send {{"type": "url", "url": "https://...", "name": ...}}', param=at
        )
    if told is not None and toolsets:
        raise InvalidRequest(
            f"{at}.tool_configuration: say it in the {TOOLSET}, or leave that out",
            param=f"{at}.tool_configuration",
        )
    allowed = None if told is None else _configured(told, f"{at}.tool_configuration")
    headers = {} if token is None else {"authorization": f"Bearer {_token(token, at)}"}
    return AnthropicServer(
        label=name, url=url, at=at, url_at=f"{at}.url", headers=headers, allowed=allowed
    )


def _token(value: object, at: str) -> str:
    at = f"{at}.authorization_token"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise InvalidRequest(f"{at}: send a plain text", param=at)
    _TOKEN.check_text(value, at)
    return value


def _configured(value: object, at: str) -> frozenset[str] | None:
    """Return the names of the tools that a tool_configuration allows; None: all."""
    parts = object_at(value, at)
    on, names = _flag(parts.pop("enabled", None), at, "enabled"), parts.pop("allowed_tools", None)
    refuse_others(parts, at)
    if on is False:
        return frozenset()
    if names is None:
        return None
    listed = cast("list[object]", names) if isinstance(names, list) else [None]
    if not all(isinstance(name, str) for name in listed):
        raise InvalidRequest(
            f"{at}.allowed_tools: send a list of names", param=f"{at}.allowed_tools"
        )
    return frozenset(map(str, listed))


def _with_toolsets(
    servers: Mapping[str, AnthropicServer], toolsets: Mapping[str, Mapping[str, object]]
) -> Iterator[AnthropicServer]:
    left = dict(servers)
    for at, entry in toolsets.items():
        parts = dict(entry)
        name = parts.pop("mcp_server_name", None)
        if not isinstance(name, str) or name not in left:
            raise InvalidRequest(
                f"{at}.mcp_server_name {quoted(name)}: name one of mcp_servers, each once",
                param=f"{at}.mcp_server_name",
            )
        yield _with_toolset(left.pop(name), parts, at)
    for server in left.values():
        raise InvalidRequest(
            f"{server.at}: none of the tools is its {TOOLSET}: send one", param=server.at
        )


def _with_toolset(server: AnthropicServer, parts: dict[str, Any], at: str) -> AnthropicServer:
    parts.pop("type")
    check_cache_control(parts.pop("cache_control", None), f"{at}.cache_control")
    default = _enabled(parts.pop("default_config", None), f"{at}.default_config")
    given = parts.pop("configs", None)
    configs = {} if given is None else object_at(given, f"{at}.configs")
    pinned = parts.pop("tools", None)
    refuse_others(parts, at)
    told = {name: _enabled(each, f"{at}.configs.{name}") for name, each in configs.items()}
    allowed = {name for name, on in told.items() if on is not False}
    return replace(
        server,
        allowed=frozenset(allowed) if default is False else None,
        denied=frozenset(name for name, on in told.items() if on is False),
        pinned=None if pinned is None else read_listing(pinned, f"{at}.tools"),
    )


def _enabled(value: object, at: str) -> bool | None:
    """Read {"enabled": ..., "defer_loading": ...}; the model knows all tools from the beginning."""
    if value is None:
        return None
    parts = object_at(value, at)
    on = _flag(parts.pop("enabled", None), at, "enabled")
    _flag(parts.pop("defer_loading", None), at, "defer_loading")
    refuse_others(parts, at)
    return on


def _flag(value: object, at: str, name: str) -> bool | None:
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"{at}.{name}: send true or false", param=f"{at}.{name}")
    return value


def read_listing(value: object, at: str) -> Listing:
    """Return tools as a server lists them. Raises InvalidRequest."""
    entries = cast("list[object]", value) if isinstance(value, list) else [None]
    if len(entries) > TOOLS:
        raise InvalidRequest(f"{at} has {len(entries)} tools; at most {TOOLS} are read", param=at)
    found = [object_at(each, f"{at}[{n}]") for n, each in enumerate(entries)]
    for n, each in enumerate(found):
        known = ("name", "description", "input_schema")
        refuse_others({k: v for k, v in each.items() if k not in known}, f"{at}[{n}]")
    return found


def offered_by(server: AnthropicServer, listing: Listing) -> list[tuple[Tool, tuple[str, str]]]:
    """Return the tools of a server as the model is offered them, each with the server's label and
    the name there. Raises InvalidRequest."""
    made: list[tuple[Tool, tuple[str, str]]] = []
    for entry in listing:
        name = read_name(entry.get("name"), server.at)
        if not server.offers(name):
            continue
        schema = entry.get("input_schema") or entry.get("inputSchema") or {"type": "object"}
        text = json.dumps(object_at(schema, server.at), ensure_ascii=False)
        _SCHEMA.check_text(text, server.at)
        full = read_name(called_name(name, server.label), server.at)
        about = read_description(entry.get("description"), server.at)
        made.append((Tool(full, about, text), (server.label, name)))
    return made
