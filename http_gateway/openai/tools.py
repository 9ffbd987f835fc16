"""Tools of every API family: functions with their schemas, and OpenAI's tool_choice, checked and
converted to our own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from http_gateway import modes
from http_gateway.bounds import check_names
from sax.chat import Tool, ToolChoice
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import TOOLS_BYTES, field
from sax.format import quoted, shortened

FUNCTION_NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,128}$"
_NAME = re.compile(FUNCTION_NAME_PATTERN)


def check_tools(tools: Sequence[Tool], path: str) -> None:
    """Raise InvalidRequest for tools that are too large together, or for one name twice."""
    size = sum(len(tool.description) + len(tool.parameters) for tool in tools)
    if size > TOOLS_BYTES:
        raise InvalidRequest(
            f"tools have {size} characters; at most {TOOLS_BYTES} are allowed: send less",
            param="tools",
        )
    names = [tool.name for tool in tools]
    for n, name in enumerate(names):
        if name in names[:n]:
            at = f"{path.format(n)}.name"
            raise InvalidRequest(f"{at} is {name} again: give each tool its own name", param=at)


def to_tool(function: dict[str, Any], at: str, parameters: str) -> Tool:
    name = read_name(function.pop("name", None), at)
    description = read_description(function.pop("description", None), at)
    schema, strict = function.pop(parameters, None), function.pop("strict", None)
    refuse_others(function, at)
    if not isinstance(strict, bool | None):
        raise InvalidRequest(f"{at}.strict: send true or false", param=f"{at}.strict")
    return Tool(name, description, _schema(schema, f"{at}.{parameters}"), bool(strict))


def read_description(value: object, at: str) -> str:
    """Return the description of a tool. Raises InvalidRequest."""
    text = value or ""
    if not isinstance(text, str):
        raise InvalidRequest(f"{at}.description: send a text", param=f"{at}.description")
    field(RequestRoute.CHAT, "tools.description").check_text(text, f"{at}.description")
    return text


def object_at(value: object, at: str) -> dict[str, Any]:
    """Return a copy of an object. Raises InvalidRequest for anything else."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{at}: send an object", param=at)
    return dict(cast("Mapping[str, Any]", value))


def read_name(value: object, at: str) -> str:
    """Return the name of a function. Raises InvalidRequest."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"{at}.name is {quoted(value)}: give at most 128 letters, digits, dots, dashes and "
            "underscores",
            param=f"{at}.name",
        )
    return value


def _schema(value: object, at: str) -> str:
    if value is None:
        return ""
    text = json.dumps(object_at(value, at), ensure_ascii=False)
    field(RequestRoute.CHAT, "tools.parameters").check_text(text, at)
    return text


def called_name(name: str, space: str = "") -> str:
    """Return the name by which the model calls a tool. space: its namespace, or MCP server."""
    return f"{space}__{name}" if space else name


def refuse_others(parts: Mapping[str, object], at: str) -> None:
    """Raise UnsupportedParameter for fields that nobody has read, unless unknown ones may pass."""
    check_names(parts, f"{at}.")
    for name in parts:
        path = f"{at}.{shortened(name)}"
        if not modes.ignored(path):
            raise UnsupportedParameter(f"{path} is not a known field: leave it out", param=path)


def known_tool(name: str, tools: Sequence[Tool]) -> str:
    """Return a name that tool_choice has. Raises InvalidRequest if no tool has it."""
    if name not in [tool.name for tool in tools]:
        raise InvalidRequest(
            f"tool_choice names {name}, which is none of the tools: name one of them",
            param="tool_choice",
        )
    return name


def read_arguments(value: object, at: str) -> str:
    """Return the arguments of an earlier call as a text. Raises InvalidRequest.

    A text that is no JSON object passes: max_tokens cut such calls, and their conversations go on.
    """
    if value is not None and not isinstance(value, str | dict):
        raise InvalidRequest(f"{at}: send a JSON object, as a text", param=at)
    text = value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)
    field(RequestRoute.CHAT, "messages.tool_calls.arguments").check_text(text, at)
    return text or "{}"


_WORDS = (ToolChoice.NONE, ToolChoice.AUTO, ToolChoice.REQUIRED)
KINDS = ("function", "custom")
ALLOWED = "allowed_tools"
MODES = (ToolChoice.AUTO, ToolChoice.REQUIRED)


@dataclass(frozen=True, slots=True)
class ChosenTools:
    """A tool_choice, parsed into the fields of ChatOptions."""

    choice: str = ToolChoice.AUTO
    name: str = ""  # of the tool that must be called, if one must
    allowed: tuple[str, ...] = ()  # only these may be called; (): all


def read_choice(
    value: object, tools: Sequence[Tool], *, nested: bool, more: bool = False
) -> ChosenTools:
    """Read a word, a tool, or the tools that are allowed.

    more: there are tools that are not known yet.

    nested: as chats have it, a tool inside a field of its kind; False: as /v1/responses has it.
    Raises InvalidRequest or UnsupportedParameter naming the field.
    """
    if value is None:
        return ChosenTools()
    if isinstance(value, str):
        return ChosenTools(_word(value, any_tools=more or bool(tools)))
    parts = object_at(value, "tool_choice")
    if parts.get("type") != ALLOWED:
        return ChosenTools(ToolChoice.FUNCTION, _named(parts, "tool_choice", tools, nested=nested))
    at = "tool_choice"
    parts.pop("type")
    if nested:
        own = object_at(parts.pop(ALLOWED, None), f"{at}.{ALLOWED}")
        refuse_others(parts, at)
        parts, at = own, f"{at}.{ALLOWED}"
    return _allowed(parts, at, tools, nested=nested)


def _word(value: str, *, any_tools: bool) -> str:
    if value not in [*_WORDS]:
        raise InvalidRequest(
            f"tool_choice is {quoted(value)}: give {', '.join(_WORDS)}, or a function",
            param="tool_choice",
        )
    if value == ToolChoice.REQUIRED and not any_tools:
        raise InvalidRequest("tool_choice is required: send tools, too", param="tool_choice")
    return value


def _named(parts: dict[str, Any], at: str, tools: Sequence[Tool], *, nested: bool) -> str:
    """Return the name of the tool that an object names."""
    kind = parts.pop("type", "function")
    if kind not in KINDS:
        raise UnsupportedParameter(
            f"{at} {quoted(kind)} is not supported: send {', '.join(_WORDS)}, a function, a custom "
            f"tool, or {ALLOWED}",
            param=at,
        )
    if nested:
        own = object_at(parts.pop(kind, None), f"{at}.{kind}")
        refuse_others(parts, at)
        parts, at = own, f"{at}.{kind}"
    name = read_name(parts.pop("name", None), at)
    space = parts.pop("namespace", None)
    refuse_others(parts, at)
    return known_tool(f"{space}__{name}" if space else name, tools)


def _allowed(parts: dict[str, Any], at: str, tools: Sequence[Tool], *, nested: bool) -> ChosenTools:
    mode, listed = parts.pop("mode", ToolChoice.AUTO), parts.pop("tools", None)
    refuse_others(parts, at)
    if mode not in [*MODES]:
        raise InvalidRequest(
            f"{at}.mode is {quoted(mode)}: give {' or '.join(MODES)}", param=f"{at}.mode"
        )
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest(f"{at}.tools: name at least one of the tools", param=f"{at}.tools")
    entries = [
        object_at(entry, f"{at}.tools[{n}]") for n, entry in enumerate(cast("list[object]", listed))
    ]
    names = [
        _named(entry, f"{at}.tools[{n}]", tools, nested=nested) for n, entry in enumerate(entries)
    ]
    return ChosenTools(mode, allowed=tuple(dict.fromkeys(names)))
