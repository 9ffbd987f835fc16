from __future__ import annotations

import asyncio

import pytest

from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.roles.local import InProcessHost
from model_server.pathways.scheduling.handles import (
    DATA_LOSS,
    NOT_FOUND,
    UNIMPLEMENTED,
    IslandIncarnation,
)
from tests.model_server.pathways import requests
from tests.model_server.pathways.arithmetic import ArithmeticExecutor
from tests.model_server.pathways.dispatcher_client import DispatcherClient
from tests.model_server.waiting import until

EXECUTE = "loaded_executable_execute_request"


class Deployment:
    """A dispatcher over islands of arithmetic: island i has the devices 2i and 2i + 1."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self.executors: dict[int, list[ArithmeticExecutor]] = {}
        for number in range(2):
            self.start(number)

    def start(self, number: int, hosts: int = 1) -> None:
        devices = [2 * number, 2 * number + 1]
        made = [ArithmeticExecutor(devices, holds=not host) for host in range(hosts)]
        self.executors[number] = made
        self.dispatcher.island(number).begin([InProcessHost(each) for each in made])
        self.dispatcher.survey()

    def lose(self, number: int) -> None:
        self.dispatcher.island(number).end("its worker was killed")
        self.dispatcher.survey()


@pytest.fixture
async def deployment() -> Deployment:
    return Deployment()


@pytest.fixture
def client(deployment: Deployment) -> DispatcherClient:
    return DispatcherClient(deployment.dispatcher)


async def test_a_client_learns_the_devices_of_all_islands(client: DispatcherClient) -> None:
    greeting = (await client.ask(requests.request("init"))).init_response
    assert [device.id for device in greeting.all_devices] == [0, 1, 2, 3]
    assert greeting.session_id == client.session.number


async def test_programs_run_where_their_devices_are(
    client: DispatcherClient, deployment: Deployment
) -> None:
    for device in (0, 3):
        program = await client.compile(device)
        array = await client.put([1, 2], device)
        assert await client.fetch(await client.execute(program, array, array)) == [3, 5]
    for number in (0, 1):
        kinds = [kind for _, kind in deployment.executors[number][0].order]
        assert kinds.count("loaded_executable_execute_request") == 1


async def test_functions_of_clients_pass_only_where_they_are_taken(
    client: DispatcherClient, deployment: Deployment
) -> None:
    async def compiled(name: str) -> tuple[int, str]:
        answer = await client.ask(requests.request("compile", program=requests.call(name, [3])))
        status = answer.response_metadata.status
        return status.code, status.message

    deployment.dispatcher.compile_options = {
        "xla_x": "1"
    }  # which is for programs, and for no calls
    code, text = await compiled("f")
    assert (code, "--sidecar_name=external" in text) == (UNIMPLEMENTED, True)
    assert await compiled("sax.read_weights") == (0, "")  # brings no code
    deployment.dispatcher.takes_functions = True
    assert await compiled("f") == (0, "")
    kinds = [kind for _, kind in deployment.executors[1][0].order]
    assert kinds == ["compile_request"] * 2
    assert not deployment.executors[0][0].order


async def test_handles_that_the_worker_chooses_can_be_named_later(client: DispatcherClient) -> None:
    program, array = await client.compile(2), await client.put([5], 2)
    answer = await client.ask(requests.execute(program, [array], []))
    result = answer.loaded_executable_execute_response.outputs[0].array_handle
    assert await client.fetch(result) == [6]


async def test_no_client_reaches_the_arrays_of_another(
    client: DispatcherClient, deployment: Deployment
) -> None:
    array = await client.put([1], 0)
    assert await client.fetch(array) == [1]
    other = DispatcherClient(deployment.dispatcher)
    told = await other.fetch(array)
    assert isinstance(told, str)
    assert told.startswith(f"{NOT_FOUND}: this session has nothing under the handle")


async def test_a_program_over_two_islands_is_refused_and_so_is_what_it_would_make(
    client: DispatcherClient,
) -> None:
    program = await client.compile(0)
    here, there = await client.put([1], 0), await client.put([1], 2)
    result = await client.execute(program, here, there)
    told = await client.fetch(result)
    assert isinstance(told, str)
    assert told.startswith(f"{UNIMPLEMENTED}: one program or array over the islands 0 and 1")


async def test_what_is_outstanding_on_a_lost_island_is_answered_at_once(
    client: DispatcherClient, deployment: Deployment
) -> None:
    deployment.executors[1][0].paused = True
    waiting = await client.send(
        requests.request("check_value_ready", value_handles=[await client.put([1], 2)])
    )
    deployment.lose(1)
    answer = await client.answer(waiting)
    assert answer.WhichOneof("response") is None  # or the client would take it for a success
    assert answer.response_metadata.status.code == DATA_LOSS
    array = await client.put([1], 0)
    assert await client.fetch(array) == [1]


async def test_old_programs_run_on_a_returned_island_and_old_arrays_are_lost(
    client: DispatcherClient, deployment: Deployment
) -> None:
    program, old = await client.compile(2), await client.put([1], 2)
    deployment.lose(1)
    told = await client.fetch(await client.execute(program))
    assert isinstance(told, str)
    assert told.startswith(f"{DATA_LOSS}: island 1 was lost")
    deployment.start(1)
    new = await client.put([7], 2)
    assert await client.fetch(await client.execute(program, new)) == [8]
    told = await client.fetch(await client.execute(program, old))
    assert isinstance(told, str)
    assert "make the array again" in told


async def test_requests_wait_until_their_programs_are_compiled_again(
    client: DispatcherClient, deployment: Deployment
) -> None:
    program = await client.compile(2)
    deployment.lose(1)
    deployment.executors[1] = [slow := ArithmeticExecutor([2, 3])]
    slow.paused = True
    deployment.dispatcher.island(1).begin([InProcessHost(slow)])
    deployment.dispatcher.survey()
    array = await client.put([1], 2)
    result = await client.execute(program, array)
    await until(lambda: len(slow.order) >= 2)
    await asyncio.sleep(0.05)
    assert [kind for _, kind in slow.order] == [
        "compile_request",
        "make_array_from_host_buffer_request",
    ]
    slow.go_on()
    assert await client.fetch(result) == [2]


@pytest.mark.parametrize("told", [False, True])
async def test_steps_that_only_read_the_same_weights_pass_one_that_waits(
    client: DispatcherClient, deployment: Deployment, told: bool
) -> None:
    """Only once the dispatcher knows which arguments the program reuses."""
    island, session = deployment.dispatcher.island(1), client.session
    program, weights = await client.compile(2), await client.put([7], 2)
    if told:
        request = requests.request("loaded_executable_metadata", loaded_executable_handle=program)
        await client.ask(request)
    coming = client.handle()  # from another island
    session.table.note((coming,), IslandIncarnation(1, island.epoch))
    island._holding[session.number].block("coming", (coming,))
    await client.execute(program, weights, coming)
    result = await client.execute(program, weights, await client.put([1], 2))
    other = await client.execute(program, await client.put([1], 2), weights)  # reuses them
    order = deployment.executors[1][0].order
    await until(lambda: [kind for _, kind in order].count(EXECUTE) >= told)
    await asyncio.sleep(0.05)
    assert [kind for _, kind in order].count(EXECUTE) == told
    if told:
        assert await client.fetch(result) == [9]
    island._release(session.number, "coming")
    assert await client.fetch(other) == [9]


async def test_destroyed_programs_are_not_compiled_again(
    client: DispatcherClient, deployment: Deployment
) -> None:
    program = await client.compile(2)
    await client.send(
        requests.request("loaded_executable_destruct", loaded_executable_handle=program)
    )
    assert len(deployment.dispatcher.island(1).programs) == 0


async def test_deleting_arrays_of_two_islands_gives_one_future(client: DispatcherClient) -> None:
    arrays = [await client.put([1], 0), await client.put([1], 2)]
    answer = await client.ask(requests.request("delete_array", array_handle=arrays))
    future = answer.delete_array_response.deletion_future_handle
    done = await client.ask(requests.request("check_future", future_handle=future))
    assert done.response_metadata.status.code == 0
    again = await client.ask(requests.request("check_future", future_handle=future))
    assert again.response_metadata.status.code == NOT_FOUND


async def test_deleted_arrays_leave_no_handle_behind(
    client: DispatcherClient, deployment: Deployment
) -> None:
    for number in (0, 1):
        deployment.executors[number][0].futures = False
    arrays = [await client.put([1], 0), await client.put([1], 2), await client.put([1], 2)]
    await client.ask(requests.request("delete_array", array_handle=arrays[:2]))
    deployment.lose(1)
    await client.ask(requests.request("delete_array", array_handle=arrays[2:]))
    await client.ask(requests.request("destruct_array", array_handle=arrays))
    assert len(client.session.table) == 0


async def test_deleting_lost_arrays_is_no_error(
    client: DispatcherClient, deployment: Deployment
) -> None:
    lost, kept = await client.put([1], 2), await client.put([1], 0)
    deployment.lose(1)
    for kind in ("delete_array", "destruct_array"):
        answer = await client.ask(requests.request(kind, array_handle=[lost, kept]))
        assert answer.response_metadata.status.code == 0
    answer = await client.ask(requests.request("delete_array", array_handle=[lost]))
    assert answer.response_metadata.status.code == 0


async def test_hosts_of_an_island_see_one_order_and_answer_as_one(deployment: Deployment) -> None:
    deployment.lose(0)
    deployment.start(0, hosts=3)
    clients = [DispatcherClient(deployment.dispatcher) for _ in range(3)]
    for client in clients:
        program, array = await client.compile(0), await client.put([1], 1)
        assert await client.fetch(await client.execute(program, array)) == [2]
    orders = [executor.order for executor in deployment.executors[0]]
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) >= 12


async def test_a_client_that_leaves_frees_everything_on_every_island(
    client: DispatcherClient, deployment: Deployment
) -> None:
    for device in (0, 2):
        assert await client.fetch(await client.put([1], device)) == [1]
    deployment.dispatcher.close(client.session)
    executors = [deployment.executors[number][0] for number in (0, 1)]
    await until(lambda: not any(executor.sessions for executor in executors))
    assert not deployment.dispatcher.sessions
    assert len(client.session.buffers) == 0


async def test_a_paused_client_goes_on_when_it_is_resumed(
    client: DispatcherClient, deployment: Deployment
) -> None:
    deployment.dispatcher.pause(client.session.number, True)
    array = await client.put([4], 0)
    await asyncio.sleep(0.02)
    assert deployment.executors[0][0].order == []
    deployment.dispatcher.pause(client.session.number, False)
    assert await client.fetch(array) == [4]


async def test_a_request_waits_for_a_host_buffer_that_comes_later(client: DispatcherClient) -> None:
    sending = asyncio.create_task(client.send(requests.put(array=90, device=0, buffer=91)))
    await asyncio.sleep(0.01)
    assert not sending.done()
    client.session.buffers.store(91, b"\x03\0\0\0")
    await sending
    assert await client.fetch(90) == [3]


async def test_a_layout_is_answered_even_when_no_island_is_up(
    client: DispatcherClient, deployment: Deployment
) -> None:
    async def layout() -> bytes:
        answer = await client.ask(requests.request("get_default_layout", device_id=3, dims=[4, 5]))
        assert answer.response_metadata.status.code == 0
        return answer.get_default_layout_response.serialized_pjrt_layout

    assert await layout() == b"of device 3"
    deployment.lose(1)
    assert await layout() == b"of device 0"
    deployment.lose(0)
    assert await layout() == b"{1,0}"
