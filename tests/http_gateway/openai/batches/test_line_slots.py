from __future__ import annotations

import asyncio

from http_gateway.openai.batches.line_slots import LineSlots
from tests.virtual_loop import now, run


class People:
    waiting = False

    def __call__(self) -> bool:
        return self.waiting


async def taken(slots: LineSlots, count: int) -> list[asyncio.Task[None]]:
    """So many lines that would run, after a while."""
    tasks = [asyncio.create_task(slots.acquire()) for _ in range(count)]
    await asyncio.sleep(5)
    return tasks


def done(tasks: list[asyncio.Task[None]]) -> int:
    return sum(task.done() for task in tasks)


def test_no_more_lines_run_than_may():
    async def story() -> None:
        slots = LineSlots(3, People())
        tasks = await taken(slots, 5)
        assert done(tasks) == 3
        began_s = now()
        slots.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (done(tasks), now()) == (4, began_s)
        slots.release()
        await asyncio.gather(*tasks)

    run(story())


def test_one_line_at_a_time_runs_while_people_wait():
    async def story() -> None:
        people = People()
        people.waiting = True
        slots = LineSlots(3, people)
        tasks = await taken(slots, 5)
        assert done(tasks) == 1
        slots.release()
        await asyncio.sleep(5)
        assert done(tasks) == 2
        people.waiting = False
        await asyncio.sleep(5)
        assert done(tasks) == 4
        slots.release()
        await asyncio.gather(*tasks)

    run(story())


def test_lines_that_run_already_are_left_alone():
    async def story() -> None:
        people = People()
        slots = LineSlots(3, people)
        tasks = await taken(slots, 4)
        people.waiting = True
        slots.release()
        slots.release()
        await asyncio.sleep(5)
        assert done(tasks) == 3  # one of the first three runs still
        slots.release()
        await asyncio.gather(*tasks)

    run(story())
