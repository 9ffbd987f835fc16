"""OpenAI's tools, tool_choice and tool_calls: checked, and converted to our own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from http_gateway import modes
from sax.chat import Tool, ToolCall, ToolChoice
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import TOOLS_BYTES, field
from sax.format import quoted, shortened

FUNCTION_NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,128}$"
_NAME = re.compile(FUNCTION_NAME_PATTERN)
_CHOICES = (ToolChoice.NONE, ToolChoice.AUTO, ToolChoice.REQUIRED)


def to_tools(entries: Sequence[object]) -> tuple[Tool, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in tools[0].type."""
    functions = [_function_of(entry, f"tools[{n}]") for n, entry in enumerate(entries)]
    return read_tools(functions, "tools[{}].function", "parameters")


def read_tools(functions: Iterable[dict[str, Any]], path: str, parameters: str) -> tuple[Tool, ...]:
    """Read functions of any API family.

    path: of a function, with {} for its number. parameters: name of the field that holds a schema.
    Raises InvalidRequest or UnsupportedParameter naming the part.
    """
    tools = tuple(_to_tool(each, path.format(n), parameters) for n, each in enumerate(functions))
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
    return tools


def _to_tool(function: dict[str, Any], at: str, parameters: str) -> Tool:
    name = read_name(function.pop("name", None), at)
    description = function.pop("description", None) or ""
    schema, strict = function.pop(parameters, None), function.pop("strict", None)
    refuse_others(function, at)
    if not isinstance(description, str):
        raise InvalidRequest(f"{at}.description: send a text", param=f"{at}.description")
    field(RequestRoute.CHAT, "tools.description").check_text(description, f"{at}.description")
    if not isinstance(strict, bool | None):
        raise InvalidRequest(f"{at}.strict: send true or false", param=f"{at}.strict")
    return Tool(name, description, _schema(schema, f"{at}.{parameters}"), bool(strict))


def _function_of(entry: object, at: str) -> dict[str, Any]:
    """Return the function of {"type": "function", "function": {...}}."""
    parts = object_at(entry, at)
    kind = parts.pop("type", "function")
    if kind != "function":
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send functions only", param=f"{at}.type"
        )
    function = object_at(parts.pop("function", None), f"{at}.function")
    parts.pop("id", None)  # of a call, read by `to_calls`
    refuse_others(parts, at)
    return function


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


def refuse_others(parts: Mapping[str, object], at: str) -> None:
    """Raise UnsupportedParameter for fields that nobody has read."""
    for name in parts:
        path = f"{at}.{shortened(name)}"
        if modes.ignored(path):
            continue
        raise UnsupportedParameter(f"{path} is not a known field: leave it out", param=path)


def to_choice(value: object, tools: Sequence[Tool]) -> tuple[str, str]:
    """Return the choice, and the name of the function that must be called, if one must.

    Raises InvalidRequest or UnsupportedParameter naming the field.
    """
    if value is None:
        return ToolChoice.AUTO, ""
    if isinstance(value, str):
        if value not in [*_CHOICES]:
            raise InvalidRequest(
                f"tool_choice is {quoted(value)}: give {', '.join(_CHOICES)}, or a function",
                param="tool_choice",
            )
        if value == ToolChoice.REQUIRED and not tools:
            raise InvalidRequest("tool_choice is required: send tools, too", param="tool_choice")
        return value, ""
    name = read_name(_function_of(value, "tool_choice").get("name"), "tool_choice.function")
    return ToolChoice.FUNCTION, known_tool(name, tools)


def known_tool(name: str, tools: Sequence[Tool]) -> str:
    """Return a name that tool_choice has. Raises InvalidRequest if no tool has it."""
    if name not in [tool.name for tool in tools]:
        raise InvalidRequest(
            f"tool_choice names {name}, which is none of the tools: name one of them",
            param="tool_choice",
        )
    return name


def to_calls(value: object, at: str) -> tuple[ToolCall, ...]:
    """Convert the calls of an earlier answer. Raises InvalidRequest or UnsupportedParameter."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"{at}: send a list of calls", param=at)
    entries = cast("list[object]", value)
    field(RequestRoute.CHAT, "messages.tool_calls").check_count(len(entries), at)
    return tuple(_to_call(entry, f"{at}[{n}]") for n, entry in enumerate(entries))


def _to_call(entry: object, at: str) -> ToolCall:
    function = _function_of(entry, at)
    id = cast("Mapping[str, object]", entry).get("id") or ""
    name = read_name(function.pop("name", None), f"{at}.function")
    arguments = function.pop("arguments", None) or "{}"
    refuse_others(function, f"{at}.function")
    if not isinstance(id, str):
        raise InvalidRequest(f"{at}.id: send a text", param=f"{at}.id")
    field(RequestRoute.CHAT, "messages.tool_calls.id").check_text(id, f"{at}.id")
    return ToolCall(id, name, read_arguments(arguments, f"{at}.function.arguments"))


def read_arguments(value: object, at: str) -> str:
    """Return the arguments of a call as JSON. Raises InvalidRequest."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    field(RequestRoute.CHAT, "messages.tool_calls.arguments").check_text(text, at)
    try:
        whole = isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        whole = False
    if not whole:
        raise InvalidRequest(f"{at}: send a JSON object, as a text", param=at)
    return text
