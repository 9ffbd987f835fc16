"""Anthropic's tools and tool_choice: checked, and converted to our own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from http_gateway.anthropic.content import check_cache_control
from http_gateway.openai.tools import known_tool, object_at, read_name, read_tools, refuse_others
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Tool, ToolChoice
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted

# Field of a tool -> the values besides null that change nothing
UNCHANGED: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    # Input is always streamed as it is written.
    "eager_input_streaming": (True, False),
    "input_examples": ([],),
}
CHOICES = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.FUNCTION,
    "none": ToolChoice.NONE,
}
_OWN = ("name", "description", "input_schema", "strict")


def read_anthropic_tools(entries: Sequence[object]) -> tuple[Tool, ...]:
    """Raises InvalidRequest or UnsupportedParameter naming the part, as in tools[0].type."""
    functions = [_function_of(entry, f"tools[{n}]") for n, entry in enumerate(entries)]
    return read_tools(functions, "tools[{}]", "input_schema")


def _function_of(entry: object, at: str) -> dict[str, Any]:
    fields = object_at(entry, at)
    kind = fields.pop("type", None)
    if kind not in (None, "custom"):
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send tools of your own (custom) only",
            param=f"{at}.type",
        )
    check_cache_control(fields.pop("cache_control", None), f"{at}.cache_control")
    function = {name: fields.pop(name) for name in _OWN if name in fields}
    refuse_unsupported(fields, UNCHANGED, at=f"{at}.")
    object_at(function.get("input_schema"), f"{at}.input_schema")
    return function


def read_anthropic_choice(
    value: Mapping[str, object] | None, tools: Sequence[Tool]
) -> tuple[str, str, bool]:
    """Return the choice, the name of the tool that must be called, if one must, and True if there
    may be several calls. Raises InvalidRequest or UnsupportedParameter naming the field."""
    if value is None:
        return ToolChoice.AUTO, "", True
    fields = dict(value)
    kind, single = fields.pop("type", None), fields.pop("disable_parallel_tool_use", None)
    if not isinstance(kind, str) or kind not in CHOICES:
        raise InvalidRequest(
            f"tool_choice.type is {quoted(kind)}: give one of {', '.join(CHOICES)}",
            param="tool_choice.type",
        )
    if not isinstance(single, bool | None):
        raise InvalidRequest(
            "tool_choice.disable_parallel_tool_use: send true or false",
            param="tool_choice.disable_parallel_tool_use",
        )
    if kind == "any" and not tools:
        raise InvalidRequest("tool_choice is any: send tools, too", param="tool_choice")
    name = ""
    if kind == "tool":
        name = known_tool(read_name(fields.pop("name", None), "tool_choice"), tools)
    refuse_others(fields, "tool_choice")
    return CHOICES[kind], name, not single
