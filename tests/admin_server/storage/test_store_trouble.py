"""An admin over a real S3 server whose store fails, throttles, stalls or forgets: it lives on."""

import asyncio
import os
import signal
import threading
from dataclasses import replace

import grpc.aio
import httpx
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from admin_server.config import AdminConfig
from admin_server.leadership import LeadTiming
from admin_server.process import Running, running
from sax.errors import AdminUnavailable, InvalidRequest
from sax.proto import admin_pb2, admin_pb2_grpc
from sax.storage.object_store import open_store
from sax.types import ModelSpec
from sax.wire.rpc import open_channel, to_sax_error
from tests.admin_server.conftest import FAST, eventually
from tests.admin_server.fake_modelet import FakeModelet
from tests.admin_server.test_process import process
from tests.stores.fault_proxy import FaultProxy, fault_proxy
from tests.stores.place import Place

TIMEOUT_S = 4.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest_asyncio.fixture
async def proxy(moto_place: Place):
    async with fault_proxy(moto_place.env["AWS_ENDPOINT_URL"]) as started:
        yield started


@pytest.fixture
def behind(proxy: FaultProxy, moto_place: Place, monkeypatch) -> Place:
    """An empty corner of a bucket behind the proxy."""
    place = proxy.before(moto_place.fresh())
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    return place


@pytest.fixture
def config(config, behind: Place):
    """State in the bucket, and little patience with it."""
    return replace(config, status_port=0, fs_root=behind.url, store_timeout_s=TIMEOUT_S)


def spec(name: str, **changes) -> ModelSpec:
    settings = {"model_path": "llama", "checkpoint": "/one", "replicas": 1, **changes}
    return ModelSpec(model_id=f"/sax/test/{name}", **settings)


def publishing(name: str) -> admin_pb2.PublishRequest:
    model = admin_pb2.Model(
        model_id=f"/sax/test/{name}",
        model_path="llama",
        checkpoint_path="/one",
        requested_num_replicas=1,
    )
    return admin_pb2.PublishRequest(model=model)


async def refused(stub: admin_pb2_grpc.AdminStub, name: str) -> None:
    """A publish that is refused as it should be, and before a client's own deadline."""
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await stub.Publish(publishing(name), timeout=60)
    error = to_sax_error(refusal.value, "admin")
    assert type(error) is AdminUnavailable
    assert "could not be confirmed as durable" in error.text


async def listed(stub: admin_pb2_grpc.AdminStub) -> set[str]:
    reply = await stub.List(admin_pb2.ListRequest(), timeout=60)
    return {one.model.model_id.rpartition("/")[2] for one in reply.published_models}


async def told(admin: Running, channel: grpc.aio.Channel) -> dict[str, object]:
    """What each face of the admin says of its health."""
    health = health_pb2_grpc.HealthStub(channel)
    names = ("", "sax.Admin", "sax.Admin/writes")
    answers = [await health.Check(health_pb2.HealthCheckRequest(service=n)) for n in names]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin.status_port}") as http:
        alive, ready = await http.get("/healthz"), await http.get("/readyz")
        metrics = (await http.get("/metrics")).text.splitlines()
        status = (await http.get("/status.json")).json()
    return {
        "grpc": [answer.status for answer in answers],
        "alive": (alive.status_code, alive.json()["status"]),
        "ready": (ready.status_code, ready.json()["writes"]),
        "reason": ready.json().get("reason", ""),
        "metric": [line for line in metrics if line.startswith("sax_admin_store_failing ")],
        "status": status["store_trouble"],
    }


async def assert_failing(admin: Running, channel: grpc.aio.Channel) -> None:
    health = await told(admin, channel)
    assert health["grpc"] == [SERVING, SERVING, NOT_SERVING]
    assert health["alive"] == (200, "degraded")
    assert health["ready"] == (503, "refused")
    assert health["reason"]
    assert health["status"] == health["reason"]
    assert health["metric"] == ["sax_admin_store_failing 1.0"]


async def until_well(admin: Running, channel: grpc.aio.Channel) -> None:
    """Each face says so; a beat that met the trouble may end after a change that did not."""
    well = {
        "grpc": [SERVING, SERVING, SERVING],
        "alive": (200, "ok"),
        "ready": (200, "ok"),
        "reason": "",
        "metric": ["sax_admin_store_failing 0.0"],
        "status": "",
    }
    while await told(admin, channel) != well:  # noqa: ASYNC110 - asked from outside
        await asyncio.sleep(0.02)


async def until_written(config: AdminConfig, *kinds: str) -> None:
    """What a leader writes at its first beat is there."""
    store = open_store(config.fs_root)
    while not all([await store.names(f"sax/test/{kind}") for kind in kinds]):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


_MORE_MOODS = [
    pytest.param(mood, marks=pytest.mark.extended)
    for mood in ("too many", "stall", "lost", "lost write", "cut", "reset")
]


@pytest.mark.extended
@pytest.mark.parametrize("mood", ["slow down", *_MORE_MOODS])
async def test_an_admin_refuses_changes_while_its_store_fails_and_recovers_by_itself(
    proxy, config, mood
):
    # A beat whose answer is lost finds itself when it is tried again: the store would look well.
    rare = LeadTiming(beat_s=600, patience_s=1800)
    async with (
        running(config, FAST, rare) as admin,
        open_channel(f"127.0.0.1:{admin.port}") as channel,
    ):
        stub = admin_pb2_grpc.AdminStub(channel)
        await stub.Publish(publishing("before"))
        await until_written(config, "beats", "roster")
        await until_well(admin, channel)
        proxy.mood = mood
        await refused(stub, "during")
        assert await listed(stub) == {"before"}
        await assert_failing(admin, channel)
        proxy.mood = "well"
        await stub.Publish(publishing("after"))
        await until_well(admin, channel)
        kept = await listed(stub)
        # What was refused is not there, or it landed and only its answer was lost.
        assert kept == {"before", "after"} | ({"during"} if mood == "lost write" else set())
    async with running(config, FAST) as again:
        assert {model.spec.model_id[10:] for model in again.cell.models()} == kept


@pytest.mark.extended
async def test_reads_watches_and_reconciling_go_on_while_the_store_stalls(proxy, config):
    first, second = await FakeModelet().start(), await FakeModelet().start()
    async with (
        running(config, FAST) as admin,
        open_channel(f"127.0.0.1:{admin.port}") as channel,
    ):
        stub = admin_pb2_grpc.AdminStub(channel)
        await stub.Publish(publishing("m"))
        await first.join(admin.port)
        await eventually(lambda: admin.cell.find("/sax/test/m").ready_replicas == 1)
        proxy.mood = "stall"
        waiting = asyncio.ensure_future(refused(stub, "n"))
        await second.join(admin.port)
        await first.stop()
        await eventually(lambda: second.calls == [("load", "/sax/test/m")])
        await eventually(lambda: admin.cell.find("/sax/test/m").ready_replicas == 1)
        reply = await stub.WatchLoc(
            admin_pb2.WatchLocRequest(model_id="/sax/test/m", seqno=0), timeout=60
        )
        assert list(reply.result.values) == [second.address]
        await waiting
    await second.stop()


@pytest.mark.extended
async def test_many_changes_against_a_stalled_store_are_all_refused_and_none_piles_up(
    proxy, config
):
    async with (
        running(config, FAST) as admin,
        open_channel(f"127.0.0.1:{admin.port}") as channel,
    ):
        stub = admin_pb2_grpc.AdminStub(channel)
        proxy.mood = "stall"
        before = threading.active_count()
        publishes = [
            asyncio.ensure_future(stub.Publish(publishing(f"m{n}"), timeout=60)) for n in range(30)
        ]
        results = await asyncio.gather(*publishes, return_exceptions=True)
        errors = [to_sax_error(result, "admin") for result in results]
        assert {type(error) for error in errors} == {AdminUnavailable}
        assert threading.active_count() < before + 10
        proxy.mood = "well"
        await stub.Publish(publishing("after"))
        assert "after" in await listed(stub)


@pytest.mark.extended
async def test_a_slow_store_is_waited_for(proxy, config):
    proxy.mood = "late"
    async with running(config, FAST) as admin:
        await admin.cell.publish(spec("m"))
        assert not admin.cell.ledger.store_health.failing


@pytest.mark.extended
async def test_a_server_that_ignores_create_if_absent_is_refused_at_the_start(proxy, config):
    proxy.mood = "forgetful"
    with pytest.raises(InvalidRequest, match="ignores create-if-absent"):
        async with running(config, FAST):
            pass


@pytest.mark.extended
async def test_every_acknowledged_change_survives_a_store_that_fails_now_and_then(proxy, config):
    """Moods change under the changes of three clients; then the log is read anew."""
    acknowledged: set[str] = set()
    tried: set[str] = set()
    moods = ["well", "lost write", "cut", "slow down", "well", "late", "reset"]
    config = replace(config, snapshot_every=5)

    async def publish(admin: Running, who: int) -> None:
        for number in range(4):
            tried.add(name := f"m{who}-{number}")
            try:
                await admin.cell.publish(spec(name))
                acknowledged.add(name)
            except AdminUnavailable:
                proxy.mood = moods[(moods.index(proxy.mood) + 1) % len(moods)]
            else:
                proxy.mood = moods[(moods.index(proxy.mood) + who) % len(moods)]

    async with running(config, FAST) as admin:
        await asyncio.gather(*(publish(admin, who) for who in range(1, 4)))
        proxy.mood = "well"
        await admin.cell.publish(spec("last"))
        kept = {model.spec.model_id[10:] for model in admin.cell.models()}
    assert acknowledged
    assert acknowledged < kept <= tried | {"last"}
    async with running(config, FAST) as again:
        assert {model.spec.model_id[10:] for model in again.cell.models()} == kept


@pytest.mark.extended
async def test_a_stalled_store_does_not_keep_the_process_from_its_end(proxy, behind):
    async with (
        process(behind.url, "--store_timeout_s", "2", env={**os.environ, **behind.env}) as (
            server,
            port,
        ),
        open_channel(f"127.0.0.1:{port}") as channel,
    ):
        proxy.mood = "stall"
        seen = proxy.requests
        publish = asyncio.ensure_future(
            admin_pb2_grpc.AdminStub(channel).Publish(publishing("m"), timeout=60)
        )
        await eventually(lambda: proxy.requests > seen)
        server.send_signal(signal.SIGTERM)
        assert await server.wait() == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await publish
