"""Tools of /v1/responses: functions, custom tools and namespaces, under the names that models call.

Tools of a namespace become functions whose names begin with its own. Tools that OpenAI runs itself
are not here. Those that clients offer whether or not a server has them are left out, and the reply
says so; others are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from http_gateway.openai.custom_tools import read_custom
from http_gateway.openai.tools import (
    called_name,
    check_tools,
    object_at,
    read_description,
    read_name,
    refuse_others,
    to_tool,
)
from sax.chat import Tool
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted

_SECRETS = ("headers", "authorization")  # of MCP servers: no reply and no store has them
LEFT_OUT = (
    *("web_search", "web_search_2025_08_26", "web_search_preview"),
    *("web_search_preview_2025_03_11", "image_generation", "tool_search"),
)
MCP = "mcp"
LEFT_OUT_HEADER = "x-sax-tools-left-out"


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool as output items name it: the client's name, not the one the model was given."""

    name: str
    namespace: str = ""
    custom: bool = False  # its input is a text
    server: str = ""  # label of the MCP server that has it
    approval: bool = False  # its calls wait for the user


@dataclass(frozen=True, slots=True)
class OfferedTools:
    tools: tuple[Tool, ...] = ()
    called: Mapping[str, CalledTool] = field(default_factory=dict[str, CalledTool])
    left_out: tuple[str, ...] = ()  # types
    servers: tuple[tuple[str, Mapping[str, object]], ...] = ()  # of MCP: path and entry


def read_offered(entries: Sequence[Mapping[str, object]], choice: object) -> OfferedTools:
    """Read a body's tools. choice: its tool_choice.

    Raises InvalidRequest or UnsupportedParameter naming the part, as in tools[0].type.
    """
    found = [(n, dict(entry)) for n, entry in enumerate(entries)]
    left = tuple(str(entry["type"]) for _, entry in found if entry.get("type") in LEFT_OUT)
    if left and (len(left) == len(found) or choice not in (None, "auto", "none")):
        _refuse(left[0], f"tools[{[e.get('type') for _, e in found].index(left[0])}]")
    called: list[tuple[Tool, CalledTool]] = []
    servers = tuple((f"tools[{n}]", entry) for n, entry in found if entry.get("type") == MCP)
    for n, entry in found:
        if entry.get("type") not in (*LEFT_OUT, MCP):
            called += _read(entry, f"tools[{n}]")
    tools = tuple(tool for tool, _ in called)
    check_tools(tools, "tools[{}]")
    return OfferedTools(tools, {tool.name: told for tool, told in called}, left, servers)


def _read(entry: dict[str, Any], at: str) -> list[tuple[Tool, CalledTool]]:
    if entry.get("type") == "namespace":
        return _namespace(entry, at)
    tool, custom = _tool(entry, at)
    return [(tool, CalledTool(tool.name, custom=custom))]


def _tool(entry: dict[str, Any], at: str) -> tuple[Tool, bool]:
    """Return a tool, and if it is a custom one."""
    kind = entry.pop("type", None)
    if kind not in ("function", "custom"):
        _refuse(kind, at)
    later = entry.pop("defer_loading", None)  # here all tools are known to the model at once
    if not isinstance(later, bool | None):
        raise InvalidRequest(f"{at}.defer_loading: send true or false", param=f"{at}.defer_loading")
    if kind == "custom":
        return read_custom(entry, at, nested=False), True
    return to_tool(entry, at, "parameters"), False


def _namespace(entry: dict[str, Any], at: str) -> list[tuple[Tool, CalledTool]]:
    entry.pop("type")
    space = read_name(entry.pop("name", None), at)
    about = read_description(entry.pop("description", None), at)
    listed = entry.pop("tools", None)
    refuse_others(entry, at)
    if not isinstance(listed, list):
        raise InvalidRequest(f"{at}.tools: send a list of tools", param=f"{at}.tools")
    made: list[tuple[Tool, CalledTool]] = []
    for n, each in enumerate(cast("list[object]", listed)):
        path = f"{at}.tools[{n}]"
        tool, custom = _tool(object_at(each, path), path)
        name = read_name(called_name(tool.name, space), path)
        made.append((replace(tool, name=name), CalledTool(tool.name, space, custom)))
    if made and about:
        first, told = made[0]
        text = f"Tools whose names begin with {space}__: {about}\n\n{first.description}".rstrip()
        made[0] = replace(first, description=text), told
    return made


def _refuse(kind: object, at: str) -> None:
    raise UnsupportedParameter(
        f"{at}.type {quoted(kind)} is not supported: no tools run on this server; send functions, "
        "and run them yourself",
        param=f"{at}.type",
    )


def told_tools(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools of a checked body that the model was offered, as a reply lists them."""
    return [_told(entry) for entry in entries if entry.get("type") not in LEFT_OUT]


def _told(entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry.get("type") != "function":
        return {name: value for name, value in entry.items() if name not in _SECRETS}
    absent = {"description": None, "parameters": None}
    return {**absent, **entry, "strict": bool(entry.get("strict"))}
