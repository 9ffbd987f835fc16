"""What the description of a chat's messages allows is what the route takes."""

from __future__ import annotations

from typing import Any

import jsonschema
from pydantic import TypeAdapter

from http_gateway.openai.chat import to_messages
from http_gateway.openai.prompts import messages_schema
from http_gateway.openai.schema import ChatMessage
from sax.errors import SaxError
from sax.fields.field import RequestRoute
from tests.each_case import each_case

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}
TAKEN: list[dict[str, Any]] = [
    {"role": "user", "content": "x", "name": "ann"},
    {"role": "assistant", "content": None, "refusal": "no"},
    {"role": "assistant", "refusal": "no"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "name": "al"},
    {"role": "assistant", "content": [], "tool_calls": [CUSTOM]},
    {"role": "user", "content": "x"},
    {"role": "user", "content": [{"type": "text", "text": "x"}], "tool_calls": []},
    {"role": "developer", "content": "x", "name": None},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
    {"role": "assistant", "content": "x", "reasoning_content": "r", "refusal": None},
    {"role": "tool", "tool_call_id": "a", "name": "f", "content": "3"},
]
REFUSED: list[dict[str, Any]] = [
    {"role": "user", "content": "x", "refusal": "no"},
    {"role": "user", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "assistant", "content": "x", "tool_calls": [{"custom": CUSTOM["custom"]}]},
    {"role": "user", "content": "x", "tool_calls": [CALL]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "assistant", "content": "x", "tool_calls": [{"id": "a"}]},
    {"role": "tool", "content": "3", "reasoning": "x"},
    {"role": "nobody", "content": "x"},
]
READ = TypeAdapter(list[ChatMessage])


def taken(message: dict[str, Any]) -> bool:
    try:
        to_messages(READ.validate_python([message]))
    except (SaxError, ValueError):
        return False
    return True


def described(message: dict[str, Any]) -> bool:
    try:
        jsonschema.validate([message], messages_schema(RequestRoute.CHAT))
    except jsonschema.ValidationError:
        return False
    return True


@each_case("message", TAKEN)
def test_a_message_that_is_taken_is_described(message: dict[str, Any]) -> None:
    assert taken(message)
    assert described(message)


@each_case("message", REFUSED)
def test_a_message_that_is_refused_is_not_described(message: dict[str, Any]) -> None:
    assert not taken(message)
    assert not described(message)
