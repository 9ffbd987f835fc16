"""WatchedCell on a clock of its own: when it asks again, and what stands meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from http_gateway.page.cell import WatchedCell
from sax.errors import AdminUnavailable
from sax.types import Overview
from tests.http_gateway.fake_cell import FakeCell, published


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_it_asks_again_once_what_it_has_is_a_second_old() -> None:
    cell, clock = FakeCell(published()), Clock()
    watched = WatchedCell(cell, clock)
    for clock.now_s, asked in ((100.0, 1), (100.9, 1), (101.0, 2), (101.5, 2), (50.0, 3)):
        await watched.look()
        assert cell.lists == asked


async def test_many_viewers_at_once_ask_once() -> None:
    cell = FakeCell(published())
    watched = WatchedCell(cell, Clock())
    sights = await asyncio.gather(*(watched.look() for _ in range(9)))
    assert cell.lists == 1
    assert len({id(sight) for sight in sights}) == 1


async def test_a_viewer_that_leaves_takes_nothing_from_the_others() -> None:
    class Held(FakeCell):
        async def overview(self) -> Overview:
            await self.released.wait()
            return await super().overview()

    cell = Held(published())
    watched = WatchedCell(cell, Clock())
    first, second = (asyncio.create_task(watched.look()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    cell.released.set()
    assert (await second).failure == ""


async def test_a_failure_is_told_beside_the_last_sight_and_forgotten_with_the_next() -> None:
    cell, clock = FakeCell(published()), Clock()
    watched = WatchedCell(cell, clock)
    whole = await watched.look()
    cell.admin_failure, clock.now_s = AdminUnavailable("away"), 102.0
    stale = await watched.look()
    assert (stale.failure, stale.at_s, stale.overview) == ("away", 100.0, whole.overview)
    cell.admin_failure = None
    assert await watched.look() == type(whole)(whole.overview, 102.0)


async def test_without_any_sight_the_failure_is_raised() -> None:
    cell = FakeCell()
    cell.admin_failure = AdminUnavailable("away")
    with pytest.raises(AdminUnavailable, match="away"):
        await WatchedCell(cell, Clock()).look()
