"""What a constraint can do to the process that reads it: it ends, alone, and others go on."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from model_server.grammars.constraint import Constraint
from model_server.grammars.reading.reader import ConstraintReader, constraint_reader
from sax.errors import InvalidRequest, SaxError
from tests.each_case import each_case

CHAIN = [f"a{n}: a{n + 1}" for n in range(3000)]
DEEP_GRAMMAR = "\n".join(["start: a0", *CHAIN, 'a3000: "x"', ""])
ITEMS = {f"c{n}": {"items": {"$ref": f"#/c{n + 1}"}} for n in range(3000)}
DEEP_SCHEMA = json.dumps({**ITEMS, "c3000": {"type": "string"}, "$ref": "#/c0"})
GOOD = Constraint("regex", "[a-z]{1,9}")


def read(*constraints: Constraint) -> list[str | BaseException]:
    async def every() -> list[str | BaseException]:
        reading = (constraint_reader().read(each, {"<|end|>": 300}) for each in constraints)
        return await asyncio.gather(*reading, return_exceptions=True)

    return asyncio.run(every())


@each_case(
    "constraint",
    [Constraint("grammar", DEEP_GRAMMAR), Constraint("json_schema", DEEP_SCHEMA)],
)
def test_what_overflows_the_stack_is_refused_and_the_next_one_read(constraint: Constraint) -> None:
    refused, good = read(constraint, GOOD)
    assert isinstance(refused, InvalidRequest)
    assert refused.param == constraint.field
    assert "simplify it" in refused.text
    assert isinstance(good, str)


@pytest.mark.extended
def test_what_takes_for_ever_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model_server.grammars.reading.reader.SLOW_S", 1.0)
    reader, beats = ConstraintReader(), list[float]()

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.001)

    async def attack() -> None:
        beating = asyncio.create_task(beat())
        lines = (Constraint("grammar", "\n" * (65_536 + n)) for n in range(3))
        endless = [asyncio.create_task(reader.read(each, {})) for each in lines]
        await asyncio.sleep(0)
        assert await reader.read(GOOD, {})
        assert not all(each.done() for each in endless), "it waited for all of them"
        for each in endless:
            with pytest.raises(SaxError):
                await each
        beating.cancel()

    asyncio.run(attack())
    assert len(beats) > 100, "the event loop went on"


@each_case("text", ["\ud800", "\n" * 3000, "[" * 30_000])
def test_what_is_no_grammar_is_refused(text: str) -> None:
    (refused,) = read(Constraint("grammar", text))
    assert isinstance(refused, InvalidRequest)
    assert refused.param == "grammar"


def test_control_tokens_may_be_named() -> None:
    named, unknown = read(
        Constraint("grammar", "start: <|end|>"), Constraint("grammar", "start: <|other|>")
    )
    assert isinstance(named, str)
    assert isinstance(unknown, InvalidRequest)
