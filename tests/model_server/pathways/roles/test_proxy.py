from __future__ import annotations

from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.resources.messages import IslandLine, Islands
from model_server.pathways.roles.proxy import IslandKeeper
from model_server.pathways.roles.worker import WorkerListener
from model_server.pathways.worker.executor_thread import ExecutorThread
from model_server.pathways.worker.transfers import ArrayTransfers
from tests.model_server.pathways.arithmetic import ArithmeticExecutor
from tests.model_server.waiting import rounds, until


async def test_an_island_stays_up_until_it_is_reported_as_lost() -> None:
    thread = ExecutorThread(ArithmeticExecutor([0, 1]))
    listener = WorkerListener(thread, ArrayTransfers(thread, LinkSafety()), "a")
    address = f"127.0.0.1:{await listener.open('127.0.0.1:0', LinkSafety())}"
    dispatcher = Dispatcher()
    keeper = IslandKeeper(dispatcher, LinkSafety())
    up = IslandLine(0, True, [address], ["a"], 2, 0.0, "")
    keeper.follow(Islands(2, [up]))
    await until(lambda: dispatcher.island(0).up)
    keeper.follow(Islands(2, []))  # from a resource manager that has just started
    assert dispatcher.expected == {0, 1}
    keeper.follow(Islands(2, [up]))
    assert (dispatcher.island(0).up, dispatcher.island(0).epoch) == (True, 1)
    keeper.follow(Islands(2, [IslandLine(0, False, [], [], 0, 0.0, "no worker has come yet")]))
    assert not dispatcher.island(0).up
    keeper.close()
    listener.close()
    thread.close()
    await rounds()
