"""OpenAI's tool_choice: which tools an answer may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from http_gateway.openai.tools import known_tool, object_at, read_name, refuse_others
from sax.chat import Tool, ToolChoice
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted

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
