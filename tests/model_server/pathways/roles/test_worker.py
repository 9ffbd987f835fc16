from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from model_server.pathways.link.messages import TransferHead
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.roles.proxy import LinkedHost
from model_server.pathways.roles.worker import WorkerListener
from model_server.pathways.scheduling.handles import DATA_LOSS
from model_server.pathways.worker.executor_thread import ExecutorThread
from model_server.pathways.worker.transfers import ArrayTransfers
from sax.errors import Unavailable
from tests.model_server.pathways import requests
from tests.model_server.pathways.arithmetic import ArithmeticExecutor
from tests.model_server.pathways.dispatcher_client import DispatcherClient
from tests.model_server.waiting import rounds, until


class FarWorker:
    """A worker and its listener, in this process."""

    def __init__(self, number: int) -> None:
        self.executor = ArithmeticExecutor([2 * number, 2 * number + 1])
        self.thread = ExecutorThread(self.executor)
        self.transfers = ArrayTransfers(self.thread, LinkSafety())
        self.listener = WorkerListener(self.thread, self.transfers, f"worker {number}")
        self.address = ""

    async def open(self) -> None:
        self.address = f"127.0.0.1:{await self.listener.open('127.0.0.1:0', LinkSafety())}"

    def close(self) -> None:
        self.listener.close()
        self.transfers.close()
        self.thread.close()


class Linked:
    """A dispatcher with two far workers."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self.workers = [FarWorker(0), FarWorker(1)]
        self.links: list[LinkedHost] = []  # connections to workers, in their order

    async def begin(self, number: int) -> None:
        worker = self.workers[number]

        def lost(why: str) -> None:
            self.dispatcher.island(number).end(why)
            self.dispatcher.survey()

        host = LinkedHost(worker.address, lost)
        await host.greet(f"worker {number}", None)
        self.links.append(host)
        self.dispatcher.island(number).begin([host])
        self.dispatcher.survey()


@pytest.fixture
async def linked() -> AsyncIterator[Linked]:
    made = Linked()
    for number, worker in enumerate(made.workers):
        await worker.open()
        await made.begin(number)
    yield made
    for number, worker in enumerate(made.workers):
        made.dispatcher.island(number).end("the test is over")
        worker.close()
    await rounds()


@pytest.fixture
def client(linked: Linked) -> DispatcherClient:
    return DispatcherClient(linked.dispatcher)


async def test_programs_run_at_a_far_worker(client: DispatcherClient) -> None:
    program, array = await client.compile(0), await client.put([1, 2, 3], 0)
    assert await client.fetch(await client.execute(program, array)) == [2, 3, 4]


async def test_arrays_go_from_worker_to_worker(client: DispatcherClient, linked: Linked) -> None:
    array = await client.put(list(range(1000)), 0)
    there = await client.copy(array, 3)
    program = await client.compile(3)
    back = await client.copy(await client.execute(program, there), 1)
    assert await client.fetch(back) == list(range(1, 1001))
    assert all(len(worker.transfers) == 0 for worker in linked.workers)
    kinds = {kind for worker in linked.workers for _, kind in worker.executor.order}
    assert "copy_arrays_request" not in kinds


async def test_one_copy_takes_arrays_from_both_islands(client: DispatcherClient) -> None:
    near, far = await client.put([1], 2), await client.put([2], 0)
    results = [client.handle(), client.handle()]
    answer = await client.ask(
        requests.request(
            "copy_arrays", array_handles=[near, far], device_ids=[3], result_handles=results
        )
    )
    assert list(answer.copy_arrays_response.array_handles) == results
    assert [await client.fetch(each) for each in results] == [[1], [2]]


async def test_only_what_needs_an_array_waits_for_it(
    client: DispatcherClient, linked: Linked
) -> None:
    array = await client.put([5], 0)
    assert await client.fetch(array) == [5]
    here = await client.put([6], 2)
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    linked.workers[0].thread.do(
        lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(60)
    )
    there = await client.copy(array, 2)
    fetching = asyncio.create_task(client.fetch(there))
    await asyncio.sleep(0.05)
    other = DispatcherClient(linked.dispatcher)
    assert await other.fetch(await other.put([7], 2)) == [7]
    assert not fetching.done()
    gate.set()
    assert await fetching == [5]
    assert await client.fetch(here) == [6]


async def test_an_array_whose_source_is_lost_becomes_the_loss(
    client: DispatcherClient, linked: Linked
) -> None:
    array = await client.put([5], 0)
    assert await client.fetch(array) == [5]
    stuck = asyncio.Event()
    loop = asyncio.get_running_loop()
    linked.workers[0].thread.do(
        lambda: asyncio.run_coroutine_threadsafe(stuck.wait(), loop).result(60)
    )
    there = await client.copy(array, 2)
    await until(lambda: len(linked.workers[1].transfers) == 1)
    linked.workers[0].listener.close()
    told = await client.fetch(there)
    assert isinstance(told, str)
    assert "island 0 was lost" in told
    stuck.set()


async def test_a_lost_worker_answers_with_the_loss(
    client: DispatcherClient, linked: Linked
) -> None:
    array = await client.put([5], 2)
    assert await client.fetch(array) == [5]
    linked.workers[1].listener.close()
    await until(lambda: not linked.dispatcher.island(1).up)
    told = await client.fetch(array)
    assert isinstance(told, str)
    assert told.startswith(f"{DATA_LOSS}: island 1 was lost")


async def test_a_proxy_server_that_disconnects_frees_its_sessions(
    client: DispatcherClient, linked: Linked
) -> None:
    assert await client.fetch(await client.put([5], 0)) == [5]
    assert linked.workers[0].executor.sessions
    linked.dispatcher.island(0).end("the proxy server disconnects")
    await until(lambda: not linked.workers[0].executor.sessions)


async def test_sessions_of_an_earlier_connection_are_freed_and_those_of_the_new_one_stay(
    client: DispatcherClient, linked: Linked
) -> None:
    """A worker that stood still finds the end of its old connection after the new one."""
    assert await client.fetch(await client.put([5], 0)) == [5]
    await linked.begin(0)
    array = await client.put([6], 0)
    assert await client.fetch(array) == [6]
    assert len(linked.workers[0].executor.sessions) == 2
    linked.links[0].close()
    await until(lambda: len(linked.workers[0].executor.sessions) == 1)
    assert await client.fetch(array) == [6]


async def test_a_transfer_that_no_request_expects_is_freed(linked: Linked) -> None:
    transfers = ArrayTransfers(linked.workers[0].thread, LinkSafety(), kept_s=0.05)
    transfers.arrived(TransferHead(7, code=DATA_LOSS, text="late"), memoryview(b""))
    await until(lambda: len(transfers) == 1)
    await until(lambda: len(transfers) == 0)


async def test_a_worker_that_was_started_again_is_not_taken_for_the_one_before(
    linked: Linked,
) -> None:
    host = LinkedHost(linked.workers[0].address, lambda why: None)
    with pytest.raises(Unavailable):
        await host.greet("the worker before", None)


async def test_nobody_answers_where_no_worker_is() -> None:
    host = LinkedHost("127.0.0.1:1", lambda why: None)
    with pytest.raises(Unavailable, match="does not answer"):
        await host.greet("", None)


async def test_large_arrays_keep_every_byte(client: DispatcherClient) -> None:
    values = np.arange(1 << 20, dtype=np.int32)
    array = await client.put(values, 0)  # type: ignore[arg-type]
    assert await client.fetch(await client.copy(array, 2)) == values.tolist()
