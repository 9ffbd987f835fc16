"""Autoscaling of a whole cell: real admin, real ports, servers that say what waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import grpc.aio
import httpx
import pytest
import pytest_asyncio

from admin_server.assignment.autoscaler import ScalingTiming
from admin_server.config import AdminConfig
from admin_server.process import Running, running
from sax.errors import InvalidRequest, ModelNotFound
from sax.proto import admin_pb2, cell_pb2, cell_pb2_grpc
from sax.types import Autoscaling, ModelSpec
from sax.wire.models import decode_published
from sax.wire.rpc import open_channel, to_sax_error
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.fake_modelet import FakeModelet

M = "/sax/test/m"
SLEEPY = Autoscaling(min_replicas=0, max_replicas=3, target_queue=2)
QUICK = ScalingTiming(up_s=0.1, down_s=0.2, idle_s=0.4)


@pytest.fixture
def config(config: AdminConfig) -> AdminConfig:
    return replace(config, scaling=QUICK)


@pytest_asyncio.fixture
async def cell(admin: Running) -> AsyncGenerator[cell_pb2_grpc.CellStub]:
    """The service beyond Saxml's."""
    async with open_channel(f"127.0.0.1:{admin.port}") as channel:
        yield cell_pb2_grpc.CellStub(channel)


def spec(**changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=M, **{"autoscaling": SLEEPY, **settings})


def says(modelet: FakeModelet, **figures: int) -> None:
    """From now on the server reports these of the model."""
    modelet.models[M] = replace(modelet.models[M], **figures)


def reported(admin: Running, figure: str) -> int:
    """What the servers were last seen to say of it, together."""
    servables = (each for server in admin.cell.servers() for each in server.servables)
    return sum(getattr(servable, figure) for servable in servables)


def demand(waiting: int = 1, model_id: str = M, caller: str = "me") -> cell_pb2.DemandRequest:
    return cell_pb2.DemandRequest(model_id=model_id, waiting=waiting, caller=caller)


@pytest.mark.virtual_time
async def test_a_queue_loads_replicas_and_its_end_unloads_them(admin, start_modelet):
    servers = [await start_modelet() for _ in range(4)]
    await admin.cell.publish(spec(autoscaling=replace(SLEEPY, min_replicas=1)))
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)
    (first,) = [server for server in servers if server.holds(M)]
    says(first, queued=30, running=8)
    await eventually(lambda: admin.cell.find(M).ready_replicas == 3)
    model = admin.cell.find(M)
    assert (model.spec.replicas, model.wanted) == (1, 3)
    assert "queue of 30 for " in model.scaling_reason
    assert sum(server.holds(M) for server in servers) == 3  # the bound holds
    says(first, queued=0, running=0)
    await eventually(lambda: sum(server.holds(M) for server in servers) == 1)
    assert "one fewer was enough" in admin.cell.find(M).scaling_reason


@pytest.mark.extended
async def test_an_idle_model_goes_to_zero_and_demand_brings_it_back(admin, cell, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec())
    await eventually(lambda: modelet.holds(M))
    await eventually(lambda: M not in modelet.models)
    model = admin.cell.find(M)
    assert (model.wanted, model.replicas) == (0, ())
    assert model.scaling_reason == "no request for 0.4 s: 0 wanted"
    modelet.may_load.clear()
    reply = await cell.Demand(demand())
    assert reply.starting
    await eventually(lambda: M in modelet.models)
    assert admin.cell.find(M).scaling_reason == "1 request is held at gateways: 1 wanted"
    while "reading weights" not in (reply := await cell.Demand(demand())).reason:
        assert reply.starting
    modelet.may_load.set()
    await eventually(lambda: admin.cell.find(M).ready_replicas == 1)


async def test_a_load_that_fails_is_told_to_who_holds_requests(admin, cell, start_modelet):
    modelet = await start_modelet()
    modelet.failing = "weights.bin is truncated"
    await admin.cell.publish(spec(replicas=0))
    while (reply := await cell.Demand(demand())).starting:
        pass
    assert "load failed: weights.bin is truncated; retry" in reply.reason


async def test_without_a_server_requests_are_not_worth_holding(cell, admin):
    await admin.cell.publish(spec(replicas=0))
    while (reply := await cell.Demand(demand())).starting:
        pass
    assert reply.reason == "no model server has joined this cell"


async def test_a_model_that_is_not_autoscaled_has_what_was_published(admin, cell, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec(autoscaling=None))
    await eventually(lambda: modelet.holds(M))
    says(modelet, queued=100)
    await eventually(lambda: reported(admin, "queued") == 100)
    model = admin.cell.find(M)
    assert (model.wanted, model.wanted_replicas, model.scaling_reason) == (1, 1, "")
    assert not (await cell.Demand(demand())).starting
    assert admin.cell.held() == {}


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        (demand(model_id="/sax/test/other"), ModelNotFound, "model"),
        (demand(waiting=-1), InvalidRequest, "waiting"),
        (demand(caller=""), InvalidRequest, "caller"),
    ],
)
async def test_a_bad_demand_is_refused_by_field(admin, cell, request_, error, param):
    await admin.cell.publish(spec())
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await cell.Demand(request_)
    refusal = to_sax_error(failure.value, "admin")
    assert (type(refusal), refusal.param) == (error, param)


@pytest.mark.virtual_time
async def test_new_bounds_act_at_once_and_off_is_off(admin, start_modelet):
    servers = [await start_modelet() for _ in range(3)]
    await admin.cell.publish(spec(autoscaling=replace(SLEEPY, min_replicas=1)))
    await eventually(lambda: sum(server.holds(M) for server in servers) == 1)
    await admin.cell.update(spec(autoscaling=Autoscaling(min_replicas=2, max_replicas=3)))
    await eventually(lambda: sum(server.holds(M) for server in servers) == 2)
    assert admin.cell.find(M).scaling_reason == "its bounds are 2 to 3 replicas: 2 wanted"
    revision = admin.cell.find(M).spec.revision  # without it, what is not said stays
    await admin.cell.update(spec(autoscaling=None, revision=revision))
    await eventually(lambda: sum(server.holds(M) for server in servers) == 1)
    calls = [call for server in servers for call in server.calls]
    assert sorted(calls) == [("load", M), ("load", M), ("unload", M)]  # none was loaded anew


@pytest.mark.virtual_time
async def test_a_bad_bound_is_refused_and_nothing_is_published(admin):
    with pytest.raises(InvalidRequest) as refusal:
        await admin.cell.publish(spec(autoscaling=replace(SLEEPY, target_queue=0)))
    assert refusal.value.param == "autoscaling.target_queue"
    assert admin.cell.models() == []


@pytest.mark.extended
async def test_a_restarted_admin_keeps_the_replicas_that_the_load_brought(config):
    bounds = replace(SLEEPY, min_replicas=1)
    servers = [await FakeModelet().start() for _ in range(3)]
    slow = replace(config, scaling=replace(QUICK, down_s=60, idle_s=60))
    async with running(slow, FAST) as first:
        for server in servers:
            await server.join(first.port)
        await first.cell.publish(spec(replicas=2, autoscaling=bounds))
        await eventually(lambda: first.cell.find(M).ready_replicas == 2)
        holders = [server for server in servers if server.holds(M)]
        says(holders[0], queued=50, running=8)
        await eventually(lambda: first.cell.find(M).ready_replicas == 3)
        says(holders[0], queued=0, running=0)
    async with running(slow, replace(FAST, settle_s=10)) as second:
        for server in servers:
            await server.join(second.port)
        await eventually(lambda: second.cell.find(M).ready_replicas == 3)
        assert second.cell.find(M).wanted == 3
        assert "3 found when this admin server began to lead" in (
            second.cell.find(M).scaling_reason
        )
    assert [server.calls for server in servers] == [[("load", M)]] * 3
    for server in servers:
        await server.stop()


@pytest.mark.extended
async def test_a_restarted_admin_does_not_call_a_model_asleep_before_its_server_is_back(config):
    slow = replace(config, scaling=replace(QUICK, idle_s=60))
    modelet = await FakeModelet().start()
    async with running(slow, FAST) as first:
        await modelet.join(first.port)
        await first.cell.publish(spec())
        await eventually(lambda: first.cell.find(M).ready_replicas == 1)
    await modelet.cut_off()
    async with running(slow, replace(FAST, settle_s=10, silence_s=60)) as second:
        told = asyncio.create_task(second.cell.watch(M, "", 0, 20))
        await asyncio.sleep(0.3)
        assert not told.done()
        await modelet.start()
        await modelet.join(second.port)
        assert (await told).values == (modelet.address,)
        await eventually(lambda: second.cell.find(M).wanted == 1)
    assert modelet.calls == [("load", M)]
    await modelet.stop()


async def test_wait_for_ready_and_the_list_go_by_what_is_ready(admin, stub, start_modelet):
    servers = [await start_modelet() for _ in range(2)]
    await admin.cell.publish(spec(replicas=2, autoscaling=replace(SLEEPY, min_replicas=2)))
    await stub.WaitForReady(admin_pb2.WaitForReadyRequest(model_id=M, num_replicas=2))
    reply = await stub.List(admin_pb2.ListRequest(model_id=M))
    (model,) = map(decode_published, reply.published_models)
    assert (model.ready_replicas, model.wanted_replicas) == (2, 2)
    assert model.spec.autoscaling == replace(SLEEPY, min_replicas=2)
    assert all(server.holds(M) for server in servers)


@pytest.mark.parametrize("status_port", [0])
async def test_the_status_page_and_the_metrics_tell_the_moved_count(admin, cell, start_modelet):
    modelet = await start_modelet()
    await admin.cell.publish(spec(replicas=9))
    await eventually(lambda: modelet.holds(M))
    says(modelet, queued=7, running=4)
    await eventually(lambda: reported(admin, "queued") == 7)
    await cell.Demand(demand(5))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.status_port}") as http:
        status = (await http.get("/status.json")).json()
        lines = (await http.get("/metrics")).text.splitlines()
    (model,) = status["models"]
    assert (model["wanted_replicas"], model["autoscaling"]["max_replicas"]) == (3, 3)
    assert model["scaling_reason"]
    assert status["servers"][0]["servables"][0]["queued"] == 7
    assert f'sax_admin_wanted_replicas{{model="{M}"}} 3.0' in lines
    assert f'sax_admin_queued_requests{{model="{M}"}} 7.0' in lines
    assert f'sax_admin_running_requests{{model="{M}"}} 4.0' in lines
    assert f'sax_admin_held_requests{{model="{M}"}} 5.0' in lines
