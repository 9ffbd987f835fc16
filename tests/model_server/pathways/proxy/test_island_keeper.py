from __future__ import annotations

from model_server.pathways.hosting.door import WorkerDoor
from model_server.pathways.hosting.executor_thread import ExecutorThread
from model_server.pathways.hosting.parcels import ParcelRoom
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.island_keeper import IslandKeeper
from model_server.pathways.resources.messages import IslandLine, Islands
from tests.model_server.pathways.arithmetic import ArithmeticExecutor
from tests.model_server.waiting import rounds, until


async def test_an_island_lives_while_nothing_is_said_of_it_and_ends_when_it_is_said() -> None:
    thread = ExecutorThread(ArithmeticExecutor([0, 1]))
    door = WorkerDoor(thread, ParcelRoom(thread, LinkSafety()), "a")
    address = f"127.0.0.1:{await door.open('127.0.0.1:0', LinkSafety())}"
    front = Front()
    keeper = IslandKeeper(front, LinkSafety())
    up = IslandLine(0, True, [address], ["a"], 2, 0.0, "")
    keeper.follow(Islands(2, [up]))
    await until(lambda: front.island(0).up)
    keeper.follow(Islands(2, []))  # of a resource manager that has just started
    assert front.expected == {0, 1}
    keeper.follow(Islands(2, [up]))
    assert (front.island(0).up, front.island(0).epoch) == (True, 1)
    keeper.follow(Islands(2, [IslandLine(0, False, [], [], 0, 0.0, "no worker has come yet")]))
    assert not front.island(0).up
    keeper.close()
    door.close()
    thread.close()
    await rounds()
