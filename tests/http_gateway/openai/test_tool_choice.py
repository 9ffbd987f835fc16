"""tool_choice as chats and as /v1/responses write it."""

from __future__ import annotations

from typing import Any

import pytest

from http_gateway.openai.tool_choice import ChosenTools, read_choice
from sax.chat import Tool
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.each_case import each_case
from tests.http_gateway.openai.test_schema import chat

TOOLS = (Tool("f"), Tool("g"), Tool("space__h"))
F = {"type": "function", "function": {"name": "f"}}
G = {"type": "custom", "custom": {"name": "g"}}


def allowed(mode: str, *tools: dict[str, Any], nested: bool) -> dict[str, Any]:
    own = {"mode": mode, "tools": [*tools]}
    return {"type": "allowed_tools", **({"allowed_tools": own} if nested else own)}


@each_case("value, nested, chosen", [
    (None, True, ChosenTools()),
    ("required", True, ChosenTools("required")),
    (F, True, ChosenTools("function", "f")),
    (G, True, ChosenTools("function", "g")),
    ({"type": "custom", "name": "g"}, False, ChosenTools("function", "g")),
    ({"type": "function", "name": "h", "namespace": "space"}, False,
     ChosenTools("function", "space__h")),
    (allowed("auto", F, F, nested=True), True, ChosenTools("auto", "", ("f",))),
    (allowed("required", {"type": "function", "name": "f"}, {"type": "custom", "name": "g"},
             nested=False), False, ChosenTools("required", "", ("f", "g"))),
])  # fmt: skip
def test_a_choice_is_read(value: object, nested: bool, chosen: ChosenTools) -> None:
    assert read_choice(value, TOOLS, nested=nested) == chosen


@each_case("value, param", [
    ("any", "tool_choice"),
    ({"type": "web_search"}, "tool_choice"),
    ({"type": "function", "name": "f"}, "tool_choice.function"),
    ({**F, "mood": 1}, "tool_choice.mood"),
    ({"type": "function", "function": {"name": "x"}}, "tool_choice"),
    ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
    (allowed("none", F, nested=True), "tool_choice.allowed_tools.mode"),
    (allowed("auto", nested=True), "tool_choice.allowed_tools.tools"),
    (allowed("auto", {"type": "mcp"}, nested=True), "tool_choice.allowed_tools.tools[0]"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(value: object, param: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedParameter)) as caught:
        read_choice(value, TOOLS, nested=True)
    assert caught.value.param == param


def test_calls_of_a_chat_are_of_allowed_tools_only() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fgh"]
    body = chat(tools=tools, tool_choice=allowed("auto", F, nested=True))
    assert [tool.name for tool in body.options.tools] == ["f", "g", "h"]
    assert body.options.allowed_tools == body.shape().tools == ("f",)
