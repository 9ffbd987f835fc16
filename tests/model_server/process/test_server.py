"""The whole process: signals, ports, health, what it says when it joins."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from model_server.config import ModelServerConfig
from model_server.loading.memory_plan import Devices
from model_server.process.server import ModelServer, advertised_host
from sax.wire import rpc
from tests.model_server.fake_model import MODEL_PATHS, FakeModels, answer_to
from tests.model_server.fake_server import Served, Stream, serving

ROOT = Path(__file__).parents[3]


@asynccontextmanager
async def process() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A model server of its own, and the address it listens on."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.model_server.fake_model"),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield child, await listening(child)
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def listening(child: asyncio.subprocess.Process) -> str:
    assert child.stderr is not None
    async for line in child.stderr:
        if found := re.search(r"model server listening on (127\.0\.0\.1:\d+)", line.decode()):
            return found[1]
    raise AssertionError("the process ended before it listened")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
async def test_a_signal_drains_the_process_and_it_exits_0(number: signal.Signals) -> None:
    async with process() as (child, address):
        channel = rpc.open_channel(address)
        served = Served(None, channel)  # pyright: ignore
        await served.load()
        stream = Stream(served)
        await stream.ask(1, max_tokens=60)
        await stream.read()
        child.send_signal(number)
        await stream.until_over(1)
        assert stream.tokens(1) == answer_to("hi", 60)
        await channel.close()
        assert await child.wait() == 0


async def test_a_load_that_does_not_stop_does_not_keep_the_process() -> None:
    async with process() as (child, address):
        channel = rpc.open_channel(address)
        loading = asyncio.ensure_future(Served(None, channel).load(path="fake.Stuck"))  # pyright: ignore
        await asyncio.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
        with pytest.raises(grpc.aio.AioRpcError):
            await loading
        await channel.close()


async def test_health_tells_serving_until_the_server_drains() -> None:
    async with serving(FakeModels()) as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="sax.Modelet"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(served.server.stop())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stopping


async def test_reflection_lists_the_services() -> None:
    async with serving(FakeModels()) as served:
        stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        reply = await call.read()
        names = {service.name for service in reply.list_services_response.service}
        assert {"sax.Modelet", "sax.server.lm.LMService", "sax.tokens.TokenService"} <= names
        call.cancel()


async def test_a_taken_port_is_an_error_in_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = make_server(ModelServerConfig(port=port, metrics_port=-1, sax_cell=""))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            await server.start()


def make_server(config: ModelServerConfig) -> ModelServer:
    return ModelServer(
        config, FakeModels(), model_paths=lambda: MODEL_PATHS, compiles_while_serving=lambda: 0
    )


async def test_a_server_offers_the_paths_its_filter_lets_through() -> None:
    config = ModelServerConfig(
        sax_cell="", model_filter_regex="fake|.*Held", tags=("a",), memory_limit_bytes=9
    )
    info = make_server(config).info()
    assert info.model_paths == ("fake", "fake.Held")
    assert (info.tags, info.memory_total, info.incarnation) == (("a",), 9, config.incarnation)


async def test_a_server_is_known_by_the_host_it_was_told_to_advertise() -> None:
    server = make_server(
        ModelServerConfig(port=0, metrics_port=0, sax_cell="", advertise="tpu-0.lab")
    )
    await server.start()
    try:
        info = server.info()
        assert info.address.startswith("tpu-0.lab:")
        assert info.debug_address.startswith("tpu-0.lab:")
    finally:
        await server.stop()


async def test_a_server_says_what_its_devices_are() -> None:
    server = ModelServer(
        ModelServerConfig(port=0, metrics_port=-1, sax_cell="", memory_limit_bytes=9),
        FakeModels(),
        model_paths=lambda: MODEL_PATHS,
        compiles_while_serving=lambda: 0,
        devices=lambda: Devices(32, 2**40),
    )
    await server.start()
    try:
        assert (server.info().devices, server.info().memory_total) == (32, 2**40)
    finally:
        await server.stop()


def test_a_server_that_listens_everywhere_says_where_it_is() -> None:
    assert advertised_host("127.0.0.1") == "127.0.0.1"
    assert advertised_host("0.0.0.0") == socket.gethostbyname(socket.gethostname())
