"""Batches of integers: the answer to n is 10 n, and to a negative n its own error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.engine.worker import Worker
from model_server.serving.batch_servable import Batcher
from model_server.serving.query_cost import BatchCost
from sax.errors import Internal, InvalidRequest, NotLoaded, QueueFull, SaxError
from tests.model_server.waiting import until
from tests.skipped_time import skip


class Tens:
    """The function under the batcher; remembers its batches, and can be held up."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        if not held:
            self.gate.set()

    def __call__(self, items: list[int]) -> Sequence[int | SaxError]:
        self.batches.append(items)
        assert self.gate.wait(60)
        if 666 in items:
            raise KeyError(666)
        return [InvalidRequest(f"{n} is negative") if n < 0 else 10 * n for n in items]


@asynccontextmanager
async def batching(
    tens: Tens,
    *,
    most: int = 4,
    wait_s: float = 0.0,
    queue: int = 100,
    by_parity: bool = False,
    devices: int = 1,
) -> AsyncIterator[Batcher[int, int]]:
    worker = Worker("batches under test")
    batcher: Batcher[int, int] = Batcher(
        tens,
        worker,
        name="/sax/test/tens",
        most=most,
        wait_s=wait_s,
        queue=queue,
        group=(lambda n: n % 2) if by_parity else (lambda n: None),
        devices=devices,
    )
    try:
        yield batcher
    finally:
        tens.gate.set()
        await batcher.close(10)
        worker.stop()
        assert batcher.waiting == 0


async def asked(batcher: Batcher[int, int], *items: int) -> list[asyncio.Task[int]]:
    """Tasks that have joined the queue."""
    tasks = [asyncio.create_task(batcher.ask(item)) for item in items]
    await asyncio.sleep(0)
    return tasks


async def running(batcher: Batcher[int, int]) -> None:
    """Until a batch is on the worker."""
    await until(lambda: batcher.running > 0)


async def test_requests_at_the_same_moment_share_a_batch() -> None:
    tens = Tens()
    async with batching(tens, wait_s=30) as batcher:
        assert await asyncio.gather(*(await asked(batcher, 1, 2, 3, 4))) == [10, 20, 30, 40]
    assert tens.batches == [[1, 2, 3, 4]]


async def test_a_batch_is_never_larger_than_the_most() -> None:
    tens = Tens()
    async with batching(tens, most=3) as batcher:
        await asyncio.gather(*(await asked(batcher, *range(8))))
    assert tens.batches == [[0, 1, 2], [3, 4, 5], [6, 7]]


async def test_a_lone_request_waits_for_others_only_so_long() -> None:
    tens = Tens()
    async with batching(tens, wait_s=30) as batcher:
        first = await asked(batcher, 1)
        second = await asked(batcher, 2)
        assert tens.batches == []
        skip(30)
        assert await asyncio.gather(*first, *second) == [10, 20]
        assert tens.batches == [[1, 2]]  # together within the wait
        (third,) = await asked(batcher, 3)
        skip(30)
        assert await third == 30
    assert tens.batches == [[1, 2], [3]]


async def test_what_arrives_while_a_batch_runs_makes_the_next_one() -> None:
    tens = Tens(held=True)
    async with batching(tens) as batcher:
        first = await asked(batcher, 1)
        await running(batcher)
        rest = await asked(batcher, 2, 3)
        assert (batcher.running, batcher.waiting) == (1, 2)
        tens.gate.set()
        assert await asyncio.gather(*first, *rest) == [10, 20, 30]
    assert tens.batches == [[1], [2, 3]]


async def test_a_bad_request_gets_its_own_error_and_harms_nobody() -> None:
    async with batching(Tens(), wait_s=30) as batcher:
        one, bad, two, three = await asked(batcher, 1, -1, 2, 3)
        with pytest.raises(InvalidRequest, match="-1 is negative"):
            await bad
        assert [await one, await two, await three] == [10, 20, 30]


async def test_items_of_different_groups_never_share_a_batch() -> None:
    tens = Tens()
    async with batching(tens, by_parity=True) as batcher:
        await asyncio.gather(*(await asked(batcher, 1, 2, 3, 4, 5)))
    assert tens.batches == [[1, 3, 5], [2, 4]]


async def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    tens = Tens(held=True)
    async with batching(tens, most=1, queue=2) as batcher:
        tasks = await asked(batcher, 1)
        await running(batcher)
        tasks += await asked(batcher, 2, 3)
        with pytest.raises(
            QueueFull, match=r"full \(2 requests queued for /sax/test/tens\)"
        ) as caught:
            await batcher.ask(4)
        assert caught.value.retry_after_s
        tens.gate.set()
        assert await asyncio.gather(*tasks) == [10, 20, 30]


async def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    tens = Tens(held=True)
    async with batching(tens, most=1, queue=1) as batcher:
        first = await asked(batcher, 1)
        await running(batcher)
        gone = await asked(batcher, 2)
        gone[0].cancel()
        await asyncio.wait(gone)
        third = await asked(batcher, 3)  # there is room again
        tens.gate.set()
        assert await asyncio.gather(*first, *third) == [10, 30]
    assert tens.batches == [[1], [3]]


async def test_a_request_cancelled_in_its_batch_does_not_disturb_the_others() -> None:
    tens = Tens(held=True)
    async with batching(tens, wait_s=30) as batcher:
        tasks = await asked(batcher, 1, 2, 3, 4)
        await running(batcher)
        tasks[1].cancel()
        tens.gate.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [done[0], *done[2:]] == [10, 30, 40]
    assert isinstance(done[1], asyncio.CancelledError)


async def test_a_batch_that_breaks_fails_its_own_requests_and_no_later_one() -> None:
    async with batching(Tens(), most=2) as batcher:
        tasks = await asked(batcher, 666, 1, 2)
        for task in tasks[:2]:
            with pytest.raises(Internal, match="log has the details"):
                await task
        assert await tasks[2] == 20


async def test_closing_lets_what_is_there_end_and_takes_nothing_new() -> None:
    tens = Tens(held=True)
    async with batching(tens, wait_s=30) as batcher:
        tasks = await asked(batcher, 1, 2)
        closing = asyncio.create_task(batcher.close(30))
        await asyncio.sleep(0)
        with pytest.raises(NotLoaded, match="was unloaded"):
            await batcher.ask(3)
        tens.gate.set()
        assert await asyncio.gather(*tasks) == [10, 20]
        await closing


async def test_closing_refuses_what_does_not_end_in_time() -> None:
    tens = Tens(held=True)
    async with batching(tens, most=1) as batcher:
        tasks = await asked(batcher, 1, 2)
        await running(batcher)
        await batcher.close(0.01)
        for task in tasks:
            with pytest.raises(NotLoaded, match="was unloaded before this request was done"):
                await task
        tens.gate.set()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-3, 9), max_size=20), st.integers(1, 5), st.booleans())
def test_everyone_gets_the_answer_to_his_own_question(
    items: list[int], most: int, by_parity: bool
) -> None:
    async def run() -> None:
        tens = Tens()
        async with batching(tens, most=most, by_parity=by_parity) as batcher:
            given = await asyncio.gather(*(await asked(batcher, *items)), return_exceptions=True)
        for item, answer in zip(items, given, strict=True):
            assert answer == 10 * item if item >= 0 else str(item) in str(answer)
        assert sorted(n for batch in tens.batches for n in batch) == sorted(items)
        assert all(len(batch) <= most for batch in tens.batches)

    asyncio.run(run())


class Charges(BatchCost):
    """Remembers what it was charged."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[float, int, int]] = []

    def add(self, seconds: float, devices: int, size: int) -> None:
        self.all.append((seconds, devices, size))
        super().add(seconds, devices, size)


async def test_each_item_is_charged_its_part_of_its_batch_before_it_is_answered() -> None:
    tens, costs = Tens(), [Charges() for _ in range(3)]
    async with batching(tens, most=2, wait_s=30, devices=8) as batcher:
        first = [asyncio.create_task(batcher.ask(n, cost)) for n, cost in enumerate(costs[:2])]
        assert await asyncio.gather(*first) == [0, 10]
        (seconds, devices, size), *more = costs[0].all
        assert (devices, size, more) == (8, 2, [])
        assert costs[1].all == costs[0].all
        assert seconds > 0
        with pytest.raises(InvalidRequest):  # its batch took time as well
            await asyncio.gather(batcher.ask(-1, costs[2]), batcher.ask(1))
        assert [each[1:] for each in costs[2].all] == [(8, 2)]


async def test_a_batch_that_broke_is_charged_to_nobody() -> None:
    async with batching(Tens()) as batcher:
        cost = Charges()
        with pytest.raises(Internal):
            await batcher.ask(666, cost)
        assert cost.milliseconds == 0
