"""Anthropic's tools and tool_choice: checked, and converted to our own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from http_gateway.anthropic.blocks import check_cache_control
from http_gateway.anthropic.mcp_servers import TOOLSET
from http_gateway.openai.tools import (
    check_tools,
    known_tool,
    object_at,
    read_name,
    refuse_others,
    to_tool,
)
from http_gateway.openai.unsupported import refuse_unsupported
from sax.chat import Tool, ToolChoice
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.format import quoted

# Field of a tool -> the values besides null that change nothing
UNCHANGED: Mapping[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"],),
    # Input is always streamed as it is written.
    "eager_input_streaming": (True, False),
}
CHOICES = {
    "auto": ToolChoice.AUTO,
    "any": ToolChoice.REQUIRED,
    "tool": ToolChoice.FUNCTION,
    "none": ToolChoice.NONE,
}
_OWN = ("name", "description", "input_schema", "strict")


def read_anthropic_tools(
    entries: Sequence[object], referenced: Sequence[str] = ()
) -> tuple[Tool, ...]:
    """Return the tools that the model may call: first those without defer_loading, then those that
    results of tools refer to, in that order, so that a prompt with more of them goes on with what
    the cache has.

    Raises InvalidRequest or UnsupportedParameter naming the part, as in tools[0].type.
    """
    deferred: set[str] = set()
    paths = {f"tools[{n}]": object_at(each, f"tools[{n}]") for n, each in enumerate(entries)}
    functions = {
        at: _function_of(each, at, deferred)
        for at, each in paths.items()
        if each.get("type") != TOOLSET
    }
    read = tuple(to_tool(each, at, "input_schema") for at, each in functions.items())
    check_tools(read, "tools[{}]")
    tools = {each.name: each for each in read}
    for name in referenced:
        if name not in tools:
            raise InvalidRequest(
                f"a tool_reference names {quoted(name)}, which is none of the tools: send it, too",
                param="messages",
            )
    loaded = [each for name, each in tools.items() if name not in deferred]
    return (*loaded, *(tools[name] for name in referenced if name in deferred))


def _function_of(fields: dict[str, Any], at: str, deferred: set[str]) -> dict[str, Any]:
    """deferred: names of tools that are not shown before they are referred to; added to."""
    kind = fields.pop("type", None)
    if kind not in (None, "custom"):
        raise UnsupportedParameter(
            f"{at}.type {quoted(kind)} is not supported: send tools of your own (custom), or those "
            f"of an MCP server ({TOOLSET})",
            param=f"{at}.type",
        )
    check_cache_control(fields.pop("cache_control", None), f"{at}.cache_control")
    examples, later = fields.pop("input_examples", None), fields.pop("defer_loading", None)
    function = {name: fields.pop(name) for name in _OWN if name in fields}
    refuse_unsupported(fields, UNCHANGED, at=f"{at}.")
    object_at(function.get("input_schema"), f"{at}.input_schema")
    if not isinstance(later, bool | None):
        raise InvalidRequest(f"{at}.defer_loading: send true or false", param=f"{at}.defer_loading")
    if later:
        deferred.add(str(function.get("name")))
    if examples:
        function["description"] = _with_examples(function.get("description"), examples, at)
    return function


def _with_examples(description: object, examples: object, at: str) -> str:
    """Return the description followed by examples of inputs, for which templates have no place."""
    if not isinstance(examples, list):
        raise InvalidRequest(f"{at}.input_examples: send a list", param=f"{at}.input_examples")
    entries = enumerate(cast("list[object]", examples))
    shown = [object_at(each, f"{at}.input_examples[{n}]") for n, each in entries]
    lines = (json.dumps(each, ensure_ascii=False) for each in shown)
    return "\n".join([str(description or ""), "", "Examples of its input:", *lines]).strip()


def read_anthropic_choice(
    value: Mapping[str, object] | None, tools: Sequence[Tool], *, more: bool = False
) -> tuple[str, str, bool]:
    """Return the choice, the name of the tool that must be called, if one must, and True if there
    may be several calls.

    more: there are tools that are not known yet. Raises InvalidRequest or UnsupportedParameter
    naming the field.
    """
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
    if kind == "any" and not (tools or more):
        raise InvalidRequest("tool_choice is any: send tools, too", param="tool_choice")
    name = ""
    if kind == "tool":
        name = read_name(fields.pop("name", None), "tool_choice")
        name = name if more else known_tool(name, tools)
    refuse_others(fields, "tool_choice")
    return CHOICES[kind], name, not single
