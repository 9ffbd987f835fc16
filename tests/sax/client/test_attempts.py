"""How often and how long a request is tried, in virtual time, and how many go on at once after a
replica died with them.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sax.client.attempts import Attempts, ResumableAnswer, RetryLimits, Suspects
from sax.client.losses import ReplicaDied, ReplicaSilent, ReplicaUnreachable
from sax.errors import DeadlineExceeded, QueueFull, ReplicaLost
from sax.types import (
    AnswerSoFar,
    GenerateRequest,
    Image,
    Message,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
)
from tests import virtual_loop

LIMITS = RetryLimits()


def test_a_replica_that_failed_at_once_is_tried_again() -> None:
    async def story() -> None:
        attempts = Attempts(LIMITS, None)
        attempts.failed("a:1", ReplicaLost("a:1 is away"))
        await attempts.again()
        assert not attempts.tried

    virtual_loop.run(story())


def test_a_replica_that_took_seconds_to_fail_is_not_tried_again() -> None:
    async def story() -> None:
        attempts = Attempts(LIMITS, None)
        await asyncio.sleep(LIMITS.rounds_s)
        attempts.failed("a:1", ReplicaLost("a:1 is silent"))  # another one may still be tried
        with pytest.raises(ReplicaLost, match="a:1 is silent"):
            await attempts.again()

    virtual_loop.run(story())


def test_the_time_that_a_request_was_held_for_a_replica_does_not_count() -> None:
    async def story() -> None:
        attempts = Attempts(LIMITS, None)
        await asyncio.sleep(60)
        attempts.begin()
        attempts.failed("a:1", ReplicaLost("a:1 is away"))
        await attempts.again()

    virtual_loop.run(story())


def test_full_queues_are_not_asked_again() -> None:
    async def story() -> None:
        attempts = Attempts(LIMITS, None)
        attempts.failed("a:1", QueueFull("8 wait"))
        with pytest.raises(QueueFull):
            await attempts.again()

    virtual_loop.run(story())


def test_of_a_full_replica_and_a_dead_one_the_full_one_is_told_of() -> None:
    async def story() -> None:
        attempts = Attempts(replace(LIMITS, attempts=2), None)
        attempts.failed("a:1", QueueFull("8 wait"))
        with pytest.raises(QueueFull, match="8 wait"):
            attempts.failed("b:1", ReplicaLost("away"))

    virtual_loop.run(story())


def begun_at(address: str) -> Attempts:
    """The attempts of an answer that was interrupted at this replica just now."""
    answer = ResumableAnswer(GenerateRequest(model_id="/m/a/b", prompt="x"))
    attempts = Attempts(LIMITS, None, answer)
    now = asyncio.get_running_loop().time()
    answer.add(TokenChunk("x", (1,), completion_tokens=1), now)
    attempts.failed(address, ReplicaLost("away"))
    return attempts


async def refused_for_ever(attempts: Attempts, address: str) -> None:
    while True:
        attempts.failed(address, ReplicaUnreachable("refused"))
        await attempts.again()


def test_an_interrupted_answer_may_wait_long_in_the_queue_of_a_replica_that_dies_too() -> None:
    async def story() -> None:
        attempts = begun_at("a:1")
        await asyncio.sleep(2 * LIMITS.resumed_s)
        attempts.failed("b:1", ReplicaLost("away"))
        await attempts.again()
        assert not attempts.tried

    virtual_loop.run(story())


def test_an_interrupted_answer_does_not_wait_for_a_replica_that_is_silent() -> None:
    async def story() -> None:
        attempts = begun_at("a:1")
        await asyncio.sleep(LIMITS.resumed_rounds_s)
        attempts.failed("b:1", ReplicaSilent("nothing"))
        with pytest.raises(ReplicaLost, match="interrupted"):
            await attempts.again()

    virtual_loop.run(story())


def test_an_interrupted_answer_waits_at_a_full_replica_however_often_a_dead_one_is_tried() -> None:
    async def story() -> None:
        attempts = begun_at("a:1")
        for _ in range(2 * LIMITS.resumed_attempts):
            attempts.failed("b:1", QueueFull("8 wait"))
            attempts.failed("a:1", ReplicaUnreachable("refused"))
            await attempts.again()
            await asyncio.sleep(0.2)
        attempts.failed("b:1", ReplicaLost("away"))  # it took the request, and died of something
        await attempts.again()
        assert not attempts.tried

    virtual_loop.run(story())


def test_a_replica_that_takes_an_interrupted_answer_and_dies_begins_a_new_round() -> None:
    async def story() -> None:
        attempts = begun_at("a:1")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(LIMITS.resumed_attempts - 2):
            attempts.failed("a:1", ReplicaUnreachable("refused"))
            await attempts.again()
            attempts.failed("b:1", ReplicaLost("away"))
            await attempts.again()
        assert loop.time() - began_s > LIMITS.resumed_rounds_s
        with pytest.raises(ReplicaLost, match="interrupted"):
            attempts.failed("b:1", ReplicaLost("away"))

    virtual_loop.run(story())


def test_an_interrupted_answer_does_not_wait_long_for_dead_replicas_alone() -> None:
    async def story() -> None:
        attempts, loop = begun_at("a:1"), asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(ReplicaLost, match="interrupted"):
            await refused_for_ever(attempts, "a:1")
        assert loop.time() - began_s < 2 * LIMITS.resumed_rounds_s

    virtual_loop.run(story())


def test_no_attempt_follows_the_last_one_or_the_time_for_attempts() -> None:
    async def story() -> None:
        attempts = Attempts(LIMITS, None)
        for _ in range(LIMITS.attempts - 1):
            attempts.failed("a:1", ReplicaLost("away"))
        with pytest.raises(ReplicaLost):
            attempts.failed("a:1", ReplicaLost("away"))
        late = Attempts(LIMITS, None)
        await asyncio.sleep(LIMITS.attempts_s)
        with pytest.raises(ReplicaLost):
            late.failed("a:1", ReplicaLost("away"))

    virtual_loop.run(story())


def suspected(timeout_s: float | None = None) -> Attempts:
    attempts = Attempts(RetryLimits(), timeout_s)
    attempts.failed("a:1", ReplicaDied("away"))
    return attempts


class Going:
    """Requests that have a turn, and how each is to end."""

    def __init__(self) -> None:
        self.suspects = Suspects()
        self.ends: list[asyncio.Future[bool]] = []  # True: it had a part of its answer

    async def go(self, attempts: Attempts) -> None:
        async with self.suspects.turn(attempts) as heard:
            end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self.ends.append(end)
            if await end and heard is not None:
                heard()

    async def end(self, count: int, harmless: bool) -> int:
        """End so many; return how many are going then."""
        for each in self.ends[:count]:
            each.set_result(harmless)
        del self.ends[:count]
        for _ in range(9):
            await asyncio.sleep(0)
        return len(self.ends)


def test_three_go_on_one_by_one_and_then_more_with_each_that_is_harmless() -> None:
    async def story() -> None:
        going = Going()
        tasks = [asyncio.create_task(going.go(suspected())) for _ in range(40)]
        counts = [await going.end(count, True) for count in (0, 1, 1, 1, 1, 1)]
        assert counts == [1, 1, 1, 2, 4, 8]
        assert await going.end(1, False) == 7, "after a death nobody follows"
        assert await going.end(7, False) == 1
        while going.ends:
            await going.end(len(going.ends), True)
        await asyncio.gather(*tasks)

    virtual_loop.run(story())


def test_the_last_that_came_goes_on_first() -> None:
    async def story() -> None:
        suspects, order = Suspects(), list[int]()

        async def go(number: int) -> None:
            async with suspects.turn(suspected()) as heard:
                order.append(number)
                assert heard is not None
                heard()

        await asyncio.gather(*[go(number) for number in range(5)])
        assert order == [4, 3, 2, 1, 0]

    virtual_loop.run(story())


def test_others_do_not_wait_and_who_left_takes_no_turn() -> None:
    async def story() -> None:
        going = Going()
        first = asyncio.create_task(going.go(suspected()))
        left = asyncio.create_task(going.go(suspected()))
        last = asyncio.create_task(going.go(suspected()))
        fresh = asyncio.create_task(going.go(Attempts(RetryLimits(), None)))
        assert await going.end(0, True) == 2
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        assert await going.end(2, True) == 1
        await going.end(1, True)
        await asyncio.gather(first, last, fresh)

    virtual_loop.run(story())


def test_a_turn_that_comes_too_late_is_a_deadline() -> None:
    async def story() -> None:
        going = Going()
        first = asyncio.create_task(going.go(suspected()))
        assert await going.end(0, True) == 1
        with pytest.raises(DeadlineExceeded):
            await going.go(suspected(timeout_s=3.0))
        await going.end(1, False)
        await first

    virtual_loop.run(story())


REQUEST = GenerateRequest(model_id="/sax/test/m", prompt="go", sampling=SamplingParams(top_k=3))


def answered(sizes: list[int], prompt_logprobs: int = 0) -> list[TokenChunk]:
    """Return an answer of tokens 0, 1, 2 ... in chunks of these sizes."""
    chunks: list[TokenChunk] = []
    total = 0
    for index, size in enumerate(sizes):
        ids = tuple(range(total, total + size))
        total += size
        chunk = TokenChunk(f"<{ids}>", ids, completion_tokens=total, score=-float(total))
        if not index:
            entry = TokenLogprob(1, "a", b"a", math.nan)
            chunk = TokenChunk(
                chunk.text,
                ids,
                completion_tokens=total,
                score=-float(total),
                prompt_logprobs=(entry,) * prompt_logprobs,
                seed=5,
                version="v",
            )
        chunks.append(chunk)
    return chunks


def test_before_the_first_chunk_the_rest_is_the_request_itself() -> None:
    assert ResumableAnswer(REQUEST).rest is REQUEST


def test_another_replica_gets_the_images_again() -> None:
    chat = (Message("user", ("What is it?", Image(b"file"))),)
    answer = ResumableAnswer(GenerateRequest(model_id="/sax/test/m", prompt=chat))
    answer.add(answered([2])[0], 0.0)
    assert answer.rest.prompt == chat
    assert answer.rest.answer is not None
    assert answer.rest.answer.token_ids == (0, 1)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3), st.data())
def test_wherever_an_answer_breaks_and_how_often_the_rest_begins_where_it_ended(
    sizes: list[int], prompt_logprobs: int, data: st.DataObject
) -> None:
    chunks = answered(sizes, prompt_logprobs)
    answer = ResumableAnswer(REQUEST)
    for index, chunk in enumerate(chunks):
        answer.add(chunk, 0.0)
        if data.draw(st.booleans()):  # another client takes it from here
            answer = ResumableAnswer(answer.rest) if data.draw(st.booleans()) else answer
        had = sum(sizes[: index + 1])
        rest = answer.rest
        assert rest.answer == AnswerSoFar(
            token_ids=tuple(range(had)),
            score=-float(had),
            prompt_logprobs=prompt_logprobs,
            version="v",
        )
        assert rest.sampling == SamplingParams(top_k=3, seed=5)
        assert rest.prompt == "go"


def test_a_chunk_that_does_not_follow_is_refused_and_not_counted() -> None:
    answer = ResumableAnswer(REQUEST)
    first, *_ = answered([2])
    answer.add(first, 0.0)
    with pytest.raises(ReplicaLost, match="token 2 of the answer instead of token 4"):
        answer.add(first, 0.0)
    assert (answer.chunks, answer.tokens) == (1, 2)


def test_the_rest_names_the_span_of_the_part_before_it() -> None:
    answer = ResumableAnswer(REQUEST)
    first, second, third = answered([1, 1, 1])
    answer.add(structs.replace(first, traceparent="00-1-2-01"), 0.0)
    answer.add(second, 0.0)
    again = ResumableAnswer(answer.rest)
    again.add(third, 0.0)
    for each in (answer, again):
        assert each.rest.answer is not None
        assert each.rest.answer.traceparent == "00-1-2-01"
