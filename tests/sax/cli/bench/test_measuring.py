"""Runs: who is asked when, what is measured of it, and what is left of a run that is stopped.

The clock is a count: an answer's part moves it by the seconds that its target names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sax.cli.bench.measuring import BenchRun
from sax.cli.bench.target import AnswerPart
from sax.cli.bench.workload import PlannedRequest
from sax.errors import QueueFull

REQUESTS = [PlannedRequest(f"prompt {number}", 2) for number in range(6)]


class Counting:
    """Answers in two parts, 1 s and 2 s after the request; "full" is refused."""

    subject: dict[str, Any] = {}

    def __init__(self) -> None:
        self.now_s = 100.0
        self.open = self.most_open = 0
        self.held: asyncio.Event | None = None
        self.three_open = asyncio.Event()

    def clock(self) -> float:
        return self.now_s

    async def prepare(self) -> None: ...

    async def answer(self, request: PlannedRequest) -> AsyncGenerator[AnswerPart, None]:
        if request.prompt == "full":
            raise QueueFull("the queue is full")
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0)
            if self.open == 3:
                self.three_open.set()
            if self.held is not None:
                await self.held.wait()
            for tokens in (1, 2):
                self.now_s += tokens
                yield AnswerPart(True, tokens, 7)
        finally:
            self.open -= 1


@pytest.fixture
def target() -> Counting:
    return Counting()


def run_of(target: Counting, total: int = len(REQUESTS)) -> BenchRun:
    return BenchRun(target, total, target.clock)


async def test_an_answer_is_measured_from_its_request(target: Counting) -> None:
    run = run_of(target)
    await run.send(REQUESTS[:1], 1, lambda _: None)
    (outcome,) = run.outcomes
    assert (outcome.sent_s, outcome.pieces_s, outcome.ended_s) == (0.0, (1.0, 3.0), 3.0)
    assert (outcome.tokens, outcome.prompt_tokens, outcome.wanted) == (2, 7, 2)
    assert not outcome.error


@pytest.mark.parametrize("streams", [1, 2, 3])
async def test_no_more_are_open_than_streams(target: Counting, streams: int) -> None:
    run = run_of(target)
    told: list[int] = []
    await run.send(REQUESTS, streams, lambda run: told.append(len(run.outcomes)))
    assert target.most_open == streams
    assert told == [1, 2, 3, 4, 5, 6]


@pytest.mark.extended
async def test_a_request_that_is_sent_late_counts_from_when_it_was_due(target: Counting) -> None:
    run = run_of(target)
    timed = [PlannedRequest("a", 2, 0.0), PlannedRequest("b", 2, 1.0)]
    await run.send(timed, 1, lambda _: None)
    assert [outcome.sent_s for outcome in run.outcomes] == [0.0, 1.0]
    assert run.outcomes[1].first_s == 3.0  # two of them waiting for the only stream


async def test_a_refused_request_is_an_outcome_and_the_others_go_on(target: Counting) -> None:
    run = run_of(target)
    await run.send([PlannedRequest("full", 2), *REQUESTS], 2, lambda _: None)
    assert sorted(outcome.error for outcome in run.outcomes) == [*[""] * 6, "the queue is full"]


@pytest.mark.parametrize("requests", [REQUESTS, REQUESTS[:3]])
async def test_a_run_that_is_stopped_keeps_what_was_answered(
    target: Counting, requests: list[PlannedRequest]
) -> None:
    run = run_of(target)
    await run.send(REQUESTS[:2], 2, lambda _: None)
    target.held = asyncio.Event()
    task = asyncio.create_task(run.send(requests, 3, lambda _: None))
    await target.three_open.wait()
    task.cancel()
    await task
    assert run.stopped
    assert (len(run.outcomes), run.running) == (2, 3)
    assert target.open == 0


async def test_a_fault_of_ours_is_no_outcome(target: Counting) -> None:
    def report(_: BenchRun) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_of(target).send(REQUESTS, 2, report)
