"""Calls are checked by the schemas of their tools, where a promise was made and not yet kept."""

from __future__ import annotations

import json
from typing import Any

from model_server.grammars.call_format import promised
from model_server.grammars.compiler import AnswerVerdict
from model_server.grammars.reading.worker import violation_of
from model_server.serving.answers.checked_sink import CheckedCalls, writes_json
from sax.call_form import Arguments, CallForm
from sax.chat import AnswerFormat, ChatOptions, Tool
from tests.each_case import each_case

UNIQUE = json.dumps({"type": "object", "properties": {"a": {"uniqueItems": True}}})
HERMES = AnswerFormat("hermes", "think")


async def check(schema: str, answer: str) -> AnswerVerdict:
    why = violation_of(schema, answer)
    return AnswerVerdict("broken" if why else "kept", why)


def call(name: str, **arguments: Any) -> str:
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


REPEATS, OTHER = call("f", a=[1, 1]), call("g", a=[1, 1])


@each_case("text, schema, why", [
    (call("f", a=[1, 2]), "", ""),
    ("<think>" + REPEATS + "</think>\n" + call("f", a=[]), "", ""),
    (REPEATS, "", "arguments of call 0 (f): $.a: [1, 1] has non-unique elements"),
    (OTHER + REPEATS, "", "arguments of call 1 (f): $.a: [1, 1] has non-unique elements"),
    (OTHER, "", ""),  # of which nothing was promised
    ("[1, 1]", '{"uniqueItems": true}', "$: [1, 1] has non-unique elements"),
    ("<think>Hm.</think>[1]", '{"uniqueItems": true}', ""),
    (call("f", a=[1]), '{"uniqueItems": true}', ""),
    ("Just text.", "", ""),
])  # fmt: skip
async def test_the_first_call_that_breaks_its_schema_is_told(
    text: str, schema: str, why: str
) -> None:
    for step in (1, 1000):
        checked = CheckedCalls(HERMES, {"f": UNIQUE, "g": None}, check, schema)
        for start in range(0, len(text), step):
            checked.push(text[start : start + step])
        assert await checked.verdict() == AnswerVerdict("broken" if why else "kept", why)


def test_arguments_are_promised_where_they_are_strict_or_a_call_is_forced() -> None:
    tool, strict = Tool("f", parameters=UNIQUE), Tool("g", strict=True)
    free, forced = ChatOptions(tools=(tool, strict)), ChatOptions(tool_choice="required")
    assert promised(tool, free) is None
    assert json.loads(promised(tool, forced) or "") == json.loads(UNIQUE)
    assert json.loads(promised(strict, free) or "")["additionalProperties"] is False


def test_forms_that_write_values_as_texts_hold_less_than_json() -> None:
    assert writes_json(HERMES)
    assert writes_json(AnswerFormat("gpt_oss", "gpt_oss"))
    assert not writes_json(AnswerFormat("gemma"))
    assert not writes_json(AnswerFormat("hermes", calls=CallForm(Arguments.PAIRS)))
