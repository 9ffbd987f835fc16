"""The virtual clock: it jumps, keeps the order of timers, and says when nothing can happen."""

import asyncio
import time

import pytest

from tests.virtual_loop import Stuck, now, run


def test_a_week_passes_at_once_and_timers_fire_in_their_order():
    fired: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, round(now() - 1000.0)))

    async def story() -> None:
        await asyncio.gather(wait("week", 604_800), wait("hour", 3600), wait("minute", 60))

    began = time.monotonic()
    run(story())
    assert fired == [("minute", 60), ("hour", 3600), ("week", 604_800)]
    assert time.monotonic() - began < 60


def test_a_time_limit_passes_like_any_timer():
    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        return now()

    assert run(story()) == pytest.approx(1030)


def test_waiting_for_what_nobody_can_bring_is_an_error():
    with pytest.raises(Stuck):
        run(asyncio.Event().wait())
