"""The last chunk of an answer comes once the whole was checked, and says what is wrong with it."""

from __future__ import annotations

import asyncio
from collections import Counter

from model_server.grammars.compiler import AnswerVerdict
from model_server.serving.answers.checked_sink import CheckedJson, CheckedSink
from sax.errors import Internal, SaxError
from sax.types import TokenChunk

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
