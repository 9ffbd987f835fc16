"""Fields of a chat's body for its template, its tools and its reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict

from http_gateway.bounds import bounded, checked
from http_gateway.openai.custom_tools import custom_call, read_custom
from http_gateway.openai.tools import (
    check_tools,
    object_at,
    read_arguments,
    read_choice,
    read_name,
    refuse_others,
    to_tool,
)
from sax.chat import Tool, ToolCall
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted
from sax.types import ChatOptions

FUNCTIONS = ("function",)
KINDS = ("function", "custom")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")


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


class ChatFields(BaseModel):
    """null always means the default."""

    model_config = ConfigDict(defer_build=True, extra="allow", strict=True, frozen=True)

    tools: Annotated[list[dict[str, object]], bounded(RequestRoute.CHAT, "tools")] | None = None
    tool_choice: (
        Annotated[str | dict[str, object], bounded(RequestRoute.CHAT, "tool_choice")] | None
    ) = None
    parallel_tool_calls: (
        Annotated[bool, checked(RequestRoute.CHAT, "parallel_tool_calls")] | None
    ) = None
    reasoning_effort: Annotated[str, bounded(RequestRoute.CHAT, "reasoning_effort")] | None = None
    # vLLM's
    include_reasoning: Annotated[bool, checked(RequestRoute.CHAT, "include_reasoning")] | None = (
        None
    )
    chat_template_kwargs: (
        Annotated[dict[str, object], bounded(RequestRoute.CHAT, "chat_template_kwargs")] | None
    ) = None
    add_generation_prompt: (
        Annotated[bool, checked(RequestRoute.CHAT, "add_generation_prompt")] | None
    ) = None
    continue_final_message: (
        Annotated[bool, checked(RequestRoute.CHAT, "continue_final_message")] | None
    ) = None
    mm_processor_kwargs: (
        Annotated[dict[str, object], bounded(RequestRoute.CHAT, "mm_processor_kwargs")] | None
    ) = None

    @cached_property
    def options(self) -> ChatOptions:
        """Raises InvalidRequest or UnsupportedParameter naming the field."""
        if self.add_generation_prompt and self.continue_final_message:
            raise InvalidRequest(
                "continue_final_message goes on with the last message, and add_generation_prompt "
                "begins a new one: leave one of them out",
                param="continue_final_message",
            )
        tools = to_tools(self.tools or (), KINDS)
        chosen = read_choice(self.tool_choice, tools, nested=True)
        return ChatOptions(
            tools=tools,
            tool_choice=chosen.choice,
            tool_name=chosen.name,
            allowed_tools=chosen.allowed,
            parallel_tool_calls=self.parallel_tool_calls is not False,
            chat_template_kwargs=template_variables(
                self.chat_template_kwargs, self.reasoning_effort, "reasoning_effort"
            ),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final_message=bool(self.continue_final_message),
            divided=True,
        )

    @property
    def custom_tools(self) -> frozenset[str]:
        """Names of the custom tools; `options` has checked them."""
        return custom_names(self.tools or ())


def template_variables(given: Mapping[str, object] | None, effort: object, param: str) -> str:
    """Return the variables of the template as JSON; "": there are none.

    param: the field that says the effort. Raises InvalidRequest.
    """
    variables = dict(given or {})
    if effort is not None:
        if effort not in _EFFORTS:
            raise InvalidRequest(
                f"{param} is {effort!r}: give one of {', '.join(_EFFORTS)}", param=param
            )
        if variables.setdefault("reasoning_effort", effort) != effort:
            raise InvalidRequest(
                f"{param} and chat_template_kwargs.reasoning_effort differ: send one", param=param
            )
    if not variables:
        return ""
    text = json.dumps(variables, ensure_ascii=False)
    field(RequestRoute.STREAM, "chat_template_kwargs").check_text(text)
    return text
