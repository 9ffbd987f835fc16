from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from model_server.pathways import protocol as messages
from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.proxy.service import (
    PROTOCOL,
    SERDES,
    SERVICE,
    SESSION_KEY,
    STORE_KEY,
    Introduction,
    agreed,
    introduced,
    service_of,
)
from model_server.pathways.roles.local import local_dispatcher
from sax.errors import InvalidRequest
from tests.model_server.pathways import requests
from tests.model_server.pathways.arithmetic import ArithmeticExecutor
from tests.model_server.waiting import until


class Caller:
    """The calls of jaxlib's client, over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self.session_id = 0
        self._op = 0

    def method(self, name: str, shape: str = "unary_unary") -> Any:
        return getattr(self._channel, shape)(f"/{SERVICE}/{name}")

    def open(self, protocol: int = PROTOCOL) -> Any:
        metadata = messages.GrpcIfrtSessionMetadata()
        metadata.version.protocol_version = protocol
        key = (SESSION_KEY, metadata.SerializeToString())
        self.stream = self.method("IfrtSession", "stream_stream")(metadata=(key,))
        return self.stream

    async def ask(self, request: Any) -> Any:
        self._op += 1
        request.request_metadata.op_id = self._op
        await self.stream.write(request.SerializeToString())
        return messages.IfrtResponse.FromString(await self.stream.read())

    async def greet(self) -> None:
        self.open()
        answer = await self.ask(requests.request("init"))
        self.session_id = answer.init_response.session_id

    async def store(self, handle: int, data: bytes, size: int | None = None) -> None:
        metadata = messages.GrpcHostBufferStoreMetadata(
            session_id=self.session_id,
            handle=handle,
            buffer_size=len(data) if size is None else size,
        )
        key = (STORE_KEY, metadata.SerializeToString())
        call = self.method("HostBufferStore", "stream_unary")(metadata=(key,))
        for at in range(0, len(data), 1 << 20):
            piece = messages.GrpcHostBufferStoreRequest(data=data[at : at + (1 << 20)])
            await call.write(piece.SerializeToString())
        await call.done_writing()
        await call

    async def look_up(self, handle: int) -> bytes:
        wanted = messages.GrpcHostBufferLookupRequest(session_id=self.session_id, handle=handle)
        call = self.method("HostBufferLookup", "unary_stream")(wanted.SerializeToString())
        read = messages.GrpcHostBufferLookupResponse.FromString
        return b"".join([read(piece).data async for piece in call])


@pytest.fixture
async def dispatcher() -> Dispatcher:
    return local_dispatcher(ArithmeticExecutor([0, 1]))


@pytest.fixture
async def caller(dispatcher: Dispatcher) -> AsyncIterator[Caller]:
    proxy = GrpcServer(service_of(dispatcher))
    port = await proxy.start("127.0.0.1:0", None)
    async with grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", options=(("grpc.max_receive_message_length", -1),)
    ) as channel:
        yield Caller(channel)
    await proxy.stop()


async def test_bytes_go_to_a_device_and_come_back(caller: Caller) -> None:
    await caller.greet()
    data = np.arange(1 << 20, dtype=np.int32).tobytes()
    await caller.store(1, data)
    assert (await caller.ask(requests.put(5, 0, 1))).response_metadata.status.code == 0
    copy = requests.request("copy_to_host_buffer", array_handle=5, host_buffer_handle=2)
    assert (await caller.ask(copy)).response_metadata.status.code == 0
    assert await caller.look_up(2) == data
    wanted = messages.GrpcHostBufferDeleteRequest(session_id=caller.session_id, handle=2)
    await caller.method("HostBufferDelete")(wanted.SerializeToString())
    with pytest.raises(grpc.aio.AioRpcError, match="no host buffer 2"):
        await caller.look_up(2)


async def test_versions_are_agreed_on_or_refused(caller: Caller) -> None:
    request = messages.GrpcGetVersionRequest()
    request.max_version.protocol_version = PROTOCOL
    answer = await caller.method("GetVersion")(request.SerializeToString())
    version = messages.GrpcGetVersionResponse.FromString(answer).version
    assert version.protocol_version == PROTOCOL
    request.max_version.protocol_version = 7
    with pytest.raises(grpc.aio.AioRpcError, match="use a jaxlib"):
        await caller.method("GetVersion")(request.SerializeToString())


async def test_a_failed_copy_is_told_to_who_looks_its_bytes_up(
    caller: Caller, dispatcher: Dispatcher
) -> None:
    await caller.greet()
    await caller.store(1, bytes(4))
    await caller.ask(requests.put(5, 0, 1))
    dispatcher.island(0).end("killed")
    dispatcher.survey()
    copy = requests.request("copy_to_host_buffer", array_handle=5, host_buffer_handle=2)
    await caller.ask(copy)
    with pytest.raises(grpc.aio.AioRpcError, match="island 0 was lost") as error:
        await caller.look_up(2)
    assert error.value.code() == grpc.StatusCode.DATA_LOSS


async def test_bad_calls_are_sentences_and_the_server_lives(caller: Caller) -> None:
    stream = caller.open(protocol=3)
    with pytest.raises(grpc.aio.AioRpcError, match="was agreed on"):
        await stream.read()
    stream = caller.open()
    await stream.write(b"\xff\xff\xff")
    with pytest.raises(grpc.aio.AioRpcError, match="no IfrtRequest"):
        await stream.read()
    stream = caller.method("IfrtSession", "stream_stream")()
    with pytest.raises(grpc.aio.AioRpcError, match="without the metadata"):
        await stream.read()
    await caller.greet()
    answer = await caller.ask(messages.IfrtRequest())
    assert "does not know it" in answer.response_metadata.status.message
    with pytest.raises(grpc.aio.AioRpcError, match="were announced"):
        await caller.store(1, b"abc", size=4)
    from_disk = messages.GrpcHostBufferReadFromDiskRequest().SerializeToString()
    with pytest.raises(grpc.aio.AioRpcError, match="reads no files"):
        await caller.method("HostBufferReadFromDisk")(from_disk)
    assert (await caller.ask(requests.request("init"))).init_response.all_devices


async def test_nobody_stores_in_a_session_that_is_not_there(caller: Caller) -> None:
    await caller.greet()
    caller.session_id += 1
    with pytest.raises(grpc.aio.AioRpcError, match="no session") as told:
        await caller.store(1, b"abc")
    assert told.value.code() is grpc.StatusCode.UNAVAILABLE  # as of any lost connection


async def test_a_client_that_goes_frees_its_session(caller: Caller, dispatcher: Dispatcher) -> None:
    await caller.greet()
    await caller.store(1, bytes(1000))
    assert len(dispatcher.sessions) == 1
    caller.stream.cancel()
    await until(lambda: not dispatcher.sessions)


async def test_a_client_that_ends_its_stream_frees_its_session(
    caller: Caller, dispatcher: Dispatcher
) -> None:
    await caller.greet()
    await caller.stream.done_writing()
    async with asyncio.timeout(60):
        assert await caller.stream.read() is grpc.aio.EOF
    await until(lambda: not dispatcher.sessions)


def offer(least: tuple[int, int], most: tuple[int, int]) -> object:
    request = messages.GrpcGetVersionRequest()
    for version, (protocol, serdes) in ((request.min_version, least), (request.max_version, most)):
        version.protocol_version = protocol
        version.ifrt_serdes_version_number = serdes
    return request


def test_both_sides_agree_on_the_version_of_this_server() -> None:
    for most in ((PROTOCOL, SERDES), (PROTOCOL + 9, SERDES + 9)):
        version = agreed(offer((16, 1), most))
        assert version.protocol_version == PROTOCOL
        assert version.ifrt_serdes_version_number == SERDES


def test_an_older_client_writes_older_values() -> None:
    assert agreed(offer((16, 1), (PROTOCOL, 2))).ifrt_serdes_version_number == 2


def test_other_versions_are_refused_with_a_remedy() -> None:
    for least, most in (
        ((16, 1), (PROTOCOL - 1, 3)),
        ((PROTOCOL + 1, 1), (PROTOCOL + 2, 3)),
        ((16, SERDES + 1), (PROTOCOL, SERDES + 2)),
    ):
        with pytest.raises(InvalidRequest, match="use a jaxlib from 0.10 to 0.12"):
            agreed(offer(least, most))


def metadata(version: int = PROTOCOL, **values: object) -> object:
    made = messages.GrpcIfrtSessionMetadata()
    made.version.protocol_version = version
    for key, value in values.items():
        entry = made.initialization_data.attributes[key]
        field = {str: "string_value", int: "int64_value", float: "float_value"}[type(value)]
        setattr(entry, field, value.encode() if isinstance(value, str) else value)
    return made


def test_a_client_may_give_its_name_and_weight() -> None:
    assert introduced(metadata()) == Introduction("", 1.0)
    assert introduced(metadata(name="trainer", weight=4)) == Introduction("trainer", 4.0)
    assert introduced(metadata(weight=0.5)).weight == 0.5


def test_weights_have_limits() -> None:
    for weight in (0, -1, 65):
        with pytest.raises(InvalidRequest, match="above 0"):
            introduced(metadata(weight=weight))


def test_a_session_speaks_what_was_agreed_on() -> None:
    with pytest.raises(InvalidRequest, match="was agreed on"):
        introduced(metadata(version=PROTOCOL - 1))
