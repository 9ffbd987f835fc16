"""The last chunk of an answer comes once the whole was checked, its calls by the schemas of their
tools, and says what is wrong with it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from model_server.grammars.call_format import promised
from model_server.grammars.compiler import AnswerVerdict
from model_server.grammars.reading_worker import violation_of
from model_server.serving.answers.checked_sink import (
    CheckedCalls,
    CheckedJson,
    CheckedSink,
    writes_json,
)
from sax.call_form import Arguments, CallForm
from sax.chat import AnswerFormat, ChatOptions, Tool
from sax.errors import Internal, SaxError
from sax.types import TokenChunk
from tests.each_case import each_case

ENDS = TokenChunk("1]", finish_reason="stop")


class Checking:
    """A check that waits until it is let go, and what came out of the sink."""

    def __init__(self, verdict: AnswerVerdict, begun: str = "", after: str = "") -> None:
        self.asked: list[str] = []
        self.told: list[TokenChunk | SaxError] = []
        self.counts = Counter[str]()
        self.go = asyncio.Event()
        self._verdict = verdict
        answer = CheckedJson(self._check, after)
        answer.push(begun)
        self.sink = CheckedSink(self.told.append, answer, self.counts)

    async def _check(self, answer: str) -> AnswerVerdict:
        self.asked.append(answer)
        await self.go.wait()
        return self._verdict

    async def settled(self) -> None:
        self.go.set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_chunks_pass_and_the_last_waits_for_the_verdict() -> None:
    made = Checking(AnswerVerdict("broken", "$: it repeats"))
    made.sink(TokenChunk("[1,"))
    assert made.told == [TokenChunk("[1,")]
    made.sink(ENDS)
    await asyncio.sleep(0)
    assert len(made.told) == 1
    await made.settled()
    assert made.asked == ["[1,1]"]
    assert made.told[1:] == [
        TokenChunk("1]", finish_reason="stop", schema_violation="$: it repeats")
    ]
    assert made.counts == {"broken": 1}


async def test_an_answer_that_keeps_to_its_schema_ends_as_any_other() -> None:
    made = Checking(AnswerVerdict("kept"))
    made.sink(ENDS)
    await made.settled()
    assert (made.told, made.counts) == ([ENDS], {"kept": 1})


async def test_what_was_cut_or_failed_is_not_checked() -> None:
    for last in (TokenChunk("1", finish_reason="length"), Internal("broke")):
        made = Checking(AnswerVerdict("broken", "x"))
        made.sink(last)
        assert (made.told, made.asked) == ([last], [])


async def test_reasoning_is_no_part_of_it_and_what_another_replica_made_is() -> None:
    made = Checking(AnswerVerdict("kept"), begun="Hm [", after="</think>")
    made.sink(TokenChunk(" </think>"))
    made.sink(TokenChunk('["</think>"]', finish_reason="stop"))
    await made.settled()
    assert made.asked == ['["</think>"]']


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
