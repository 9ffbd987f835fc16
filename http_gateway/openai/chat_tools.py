"""Tools and tool_calls of a chat's body: functions and custom tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from http_gateway.openai.custom_tools import custom_call, read_custom
from http_gateway.openai.tools import (
    check_tools,
    object_at,
    read_arguments,
    read_name,
    refuse_others,
    to_tool,
)
from sax.chat import Tool, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted

FUNCTIONS = ("function",)
KINDS = ("function", "custom")


def to_tools(entries: Sequence[object], kinds: Sequence[str] = FUNCTIONS) -> tuple[Tool, ...]:
    """kinds: types of tools that may be there.

    Raises InvalidRequest or UnsupportedParameter naming the part, as in tools[0].type."""
    tools = tuple(_to_tool(entry, f"tools[{n}]", kinds) for n, entry in enumerate(entries))
    check_tools(tools, "tools[{}].function")
    return tools


def custom_names(entries: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the custom tools among checked ones."""
    return frozenset(each["custom"]["name"] for each in entries if each.get("type") == "custom")


def _to_tool(entry: object, at: str, kinds: Sequence[str]) -> Tool:
    kind, parts = _kind_of(entry, at, kinds)
    if kind == "custom":
        return read_custom(parts, f"{at}.custom", nested=True)
    return to_tool(parts, f"{at}.function", "parameters")


def _kind_of(entry: object, at: str, kinds: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the type and the parts of {"type": "function", "function": {...}}, or of custom."""
    parts = object_at(entry, at)
    kind = parts.pop("type", "function")
    if kind not in kinds:
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send {' or '.join(kinds)}",
            param=f"{at}.type",
        )
    own = object_at(parts.pop(kind, None), f"{at}.{kind}")
    parts.pop("id", None)  # of a call, read by `to_calls`
    refuse_others(parts, at)
    return kind, own


def to_calls(value: object, at: str, kinds: Sequence[str] = FUNCTIONS) -> tuple[ToolCall, ...]:
    """Convert the calls of an earlier answer. Raises InvalidRequest or UnsupportedParameter."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{at}: send a list of calls", param=at)
    entries = cast("list[object]", value)
    field(RequestRoute.CHAT, "messages.tool_calls").check_count(len(entries), at)
    return tuple(_to_call(entry, f"{at}[{n}]", kinds) for n, entry in enumerate(entries))


def _to_call(entry: object, at: str, kinds: Sequence[str]) -> ToolCall:
    kind, parts = _kind_of(entry, at, kinds)
    id = cast("Mapping[str, object]", entry).get("id") or ""
    name = read_name(parts.pop("name", None), f"{at}.{kind}")
    said = parts.pop("input" if kind == "custom" else "arguments", None)
    refuse_others(parts, f"{at}.{kind}")
    if not isinstance(id, str):
        raise InvalidRequest(f"{at}.id: send a text", param=f"{at}.id")
    field(RequestRoute.CHAT, "messages.tool_calls.id").check_text(id, f"{at}.id")
    if kind == "custom":
        return custom_call(id, name, said, f"{at}.custom.input")
    return ToolCall(id, name, read_arguments(said, f"{at}.function.arguments"))
