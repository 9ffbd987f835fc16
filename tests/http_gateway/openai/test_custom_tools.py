"""Custom tools: a text in, as one argument of a function; their Lark grammars as regexes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_gateway.openai.custom_tools import (
    CustomInput,
    NotRegular,
    custom_call,
    lark_pattern,
    read_custom,
)
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


# In the shape of the grammar of patches that coding agents send.
PATCHES = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?

hunk: add | delete  // one of two
add: "*** Add: " filename LF add_line+
delete: "*** Delete: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""


@each_case("definition, good, bad", [
    (PATCHES, "*** Begin\n*** Add: a/b.py\n+x = (1)\n+\n*** Delete: c\n*** End",
     "*** Begin\n*** End"),
    ('start: "a.b"i | "c"', "A.B", "aXb"),
    ('start: ("a" | "b")~2..3 ["!"]', "aba!", "a!"),
    ('start: x~2\nx: "a".."c"\n  | /[0-9]/', "b7", "bd"),
    ('?start: INT ("," INT)*\n%import common.INT', "1,22,3", "1,,2"),
    ('start.2: /a\\/b/i\n', "A/B", "ab"),
    ('start: WORD\nWORD: /x+/', "xx", ""),
    (r'start: "\d\b"', r"\d\b", "1"),
    ('start: "\\n\\t\\"" N\n%import common.DIGIT -> N', '\n\t"4', "\n"),
])  # fmt: skip
def test_a_grammar_without_circles_is_a_regex(definition: str, good: str, bad: str) -> None:
    pattern = re.compile(lark_pattern(definition))
    assert pattern.fullmatch(good)
    assert not pattern.fullmatch(bad)


@each_case("definition, words", [
    ('start: "(" start ")" | "x"', "circle"),
    ('start: a\na: b\nb: a', "circle"),
    ('start: x', "no rule x"),
    ('begin: "x"', "no rule start"),
    ('start: "x"\n%ignore " "', "not read"),
    ('"x"', "before the first rule"),
    ('start: ("x"', "bracket"),
    ('start: "x" )', "nothing can"),
    ('start: "x"~', "too early"),
    ('start: /x/m', "flags"),
    ('start: A\n%import common.SH_COMMENT -> A', "not known"),
    ('start: "ab".."c"', "single characters"),
    ('start: "z".."a"', "in order"),
    ('start: "a"..5', "end of the range"),
    ('start: "a"~3..1', "fewer"),
    ('start: a\na: "x"\na: "y"', "twice"),
    (r'start: "\ud800"', "no text"),
    ("start: " + "a " * 15000 + "\na: /" + "x" * 30000 + "/", "too long"),
    ("start: r0\n" + "\n".join(f"r{n}: {'(' * 50}r{n + 1}{')' * 50}" for n in range(50)),
     "too deep"),
    ("start: " + "(" * 100 + '"x"' + ")" * 100, "too deep"),
    ("start: a0\n" + "\n".join(f"a{n}: a{n + 1}" for n in range(99)) + '\na99: "x"', "too deep"),
    ("start: a0\n" + "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(40)) + '\na40: "x"',
     "too long"),
])  # fmt: skip
def test_others_are_refused_with_the_reason(definition: str, words: str) -> None:
    with pytest.raises(NotRegular, match=words):
        lark_pattern(definition)
