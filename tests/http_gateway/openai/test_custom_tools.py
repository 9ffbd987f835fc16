"""Custom tools: a text in, as one argument of a function."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.custom_tools import CustomInput, custom_call, read_custom
from http_gateway.openai.events import ChatEvents
from http_gateway.openai.reply import Head, Transcript, chat_body, usage_of
from sax.errors import InvalidRequest, UnsupportedParameter
from sax.types import AnswerFormat, TokenChunk
from tests.each_case import each_case
from tests.http_gateway.openai.test_chat import turns
from tests.http_gateway.openai.test_schema import chat

PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Applies a patch."}}
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
TEXT = 'one "two"\n\ttülp\U0001f337 \\ end'


def test_a_custom_tool_is_a_strict_function_with_one_text() -> None:
    body = chat(tools=[PATCH, {"type": "custom", "custom": {"name": "as", "format": GRAMMAR}}])
    patch, letters = body.options.tools
    assert (patch.name, patch.description, patch.strict) == ("patch", "Applies a patch.", True)
    assert json.loads(patch.parameters)["properties"] == {"input": {"type": "string"}}
    made = json.loads(letters.parameters)
    assert made["properties"]["input"]["pattern"] == "^(?:a+)$"
    assert body.shape().custom_tools == {"patch", "as"}


@each_case("given, param", [
    ({}, "at.name"),
    ({"name": "f", "mood": 1}, "at.mood"),
    ({"name": "f", "description": 1}, "at.description"),
    ({"name": "f", "format": {"type": "json"}}, "at.format.type"),
    ({"name": "f", "format": {"type": "text", "mood": 1}}, "at.format.mood"),
    ({"name": "f", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}},
     "at.format.syntax"),
    ({"name": "f", "format": {"type": "grammar", "syntax": "regex"}}, "at.format.definition"),
    ({"name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "start: start"}},
     "at.format.definition"),
])  # fmt: skip
def test_what_is_wrong_is_refused_by_its_path(given: dict[str, Any], param: str) -> None:
    with pytest.raises((InvalidRequest, UnsupportedParameter)) as caught:
        read_custom(dict(given), "at", nested=False)
    assert caught.value.param == param


def test_a_call_that_is_sent_back_is_that_of_its_function() -> None:
    call = {"id": "1", "type": "custom", "custom": {"name": "patch", "input": TEXT}}
    (turn,) = turns({"role": "assistant", "content": None, "tool_calls": [call]})
    assert turn.tool_calls == (custom_call("1", "patch", TEXT, "at"),)
    assert json.loads(turn.tool_calls[0].arguments) == {"input": TEXT}


@given(
    text=st.text(max_size=20),
    cuts=st.sets(st.integers(1, 60), max_size=20),
    ascii_only=st.booleans(),
)
def test_an_input_is_read_whatever_its_pieces(text: str, cuts: set[int], ascii_only: bool):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    marks = [0, *sorted(cut for cut in cuts if cut < len(arguments)), len(arguments)]
    reader = CustomInput()
    pieces = [reader.push(arguments[a:b]) for a, b in zip(marks, marks[1:], strict=False)]
    assert "".join([*pieces, reader.finish()]) == text


def test_arguments_of_another_form_come_as_they_are() -> None:
    reader = CustomInput()
    assert reader.push('{"text": "a"}') == ""
    assert reader.finish() == '{"text": "a"}'


def test_replies_and_streams_tell_the_text_of_a_call() -> None:
    called = json.dumps({"name": "patch", "arguments": {"input": TEXT}})
    said = f"<tool_call>\n{called}\n</tool_call>"
    shape, format = chat(tools=[PATCH]).shape(), AnswerFormat("hermes")
    head = Head("id-1", 1700000000, "m")
    transcript = Transcript(shape=shape)
    transcript.add(TokenChunk(said, answer_format=format, finish_reason="stop", seed=1))
    whole = json.loads(chat_body(head, [transcript], usage_of(1, 1, 0), shape))
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": TEXT})
    events = ChatEvents(head, 0, shape)
    written = b"".join(
        events(
            TokenChunk(
                letter,
                answer_format=None if n else format,
                finish_reason=None if n < len(said) - 1 else "stop",
            )
        )
        for n, letter in enumerate(said)
    )
    deltas = [
        json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("tool_calls")
        for line in written.decode().splitlines()
        if line
    ]
    first, *rest = [delta[0] for delta in deltas if delta]
    assert (first["type"], first["custom"]) == ("custom", {"name": "patch", "input": ""})
    assert len(rest) > 5
    assert "".join(delta["custom"]["input"] for delta in rest) == TEXT
