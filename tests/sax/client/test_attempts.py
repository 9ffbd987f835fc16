"""How often and how long a request is tried, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sax.client.attempts import Attempts, RetryLimits
from sax.client.losses import ReplicaSilent, ReplicaUnreachable
from sax.client.resumable_answer import ResumableAnswer
from sax.errors import QueueFull, ReplicaLost
from sax.types import GenerateRequest, TokenChunk
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
