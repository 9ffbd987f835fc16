"""A loop that stands is seen from outside."""

import asyncio

from model_server.process.health_page import STUCK_S, LoopWatch


async def test_a_loop_that_moves_is_no_trouble_and_one_that_stands_is() -> None:
    now = 0.0
    watch = LoopWatch(lambda: now)
    watch.start()
    now = STUCK_S + 1  # nothing has ticked since
    assert "has not moved for 61 s" in watch.trouble()
    await asyncio.sleep(0)  # the loop moves
    assert watch.trouble() == ""
    watch.stop()
