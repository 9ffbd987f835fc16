"""How many requests go on at once after a replica died with them."""

from __future__ import annotations

import asyncio

import pytest

from sax.client.attempts import Attempts, RetryLimits, Suspects
from sax.client.losses import ReplicaDied
from sax.errors import DeadlineExceeded
from tests import virtual_loop


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
