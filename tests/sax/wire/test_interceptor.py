"""Strangers, garbage and callers that leave, at a real gRPC server and byte by byte."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from sax.auth.authentication import Authentication
from sax.auth.token_file import TokenFile
from sax.errors import InvalidRequest, NotFound, ReplicaLost, SaxError, Unauthenticated
from sax.proto import admin_pb2
from sax.wire.interceptor import ErrorInterceptor
from sax.wire.rpc import ERROR_KEY, open_channel, server_options, to_sax_error
from tests.each_case import each_case
from tests.identities import Identities
from tests.sax.client.test_connection import until

LIMIT = 1 << 20
GARBAGE = b"\xff\xff\xff"
METHODS = ("Unary", "UnaryStream", "StreamUnary", "Both")


class Refused:
    """A message that no method takes."""

    def __init__(self, data: bytes) -> None:
        self.data = data


class Echo(grpc.GenericRpcHandler):
    """A method of each kind; they note the messages that reach them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.parsed = 0

    def parse(self, data: bytes) -> Any:
        self.parsed += 1
        return admin_pb2.ListRequest.FromString(data)

    def take(self, request: Any) -> None:
        if isinstance(request, Refused):
            raise InvalidRequest("it is refused")
        self.seen.append(request)

    async def one(self, request: Any, context: Any) -> Any:
        self.take(request)
        return request

    async def one_to_many(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.take(request)
        while True:
            yield request
            await asyncio.sleep(0.01)

    async def many_to_one(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            self.take(request)
        return admin_pb2.ListRequest()

    async def both(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            self.take(request)
            yield request

    def service(self, details: Any) -> Any:
        codec = (lambda data: self.parse(data), admin_pb2.ListRequest.SerializeToString)
        kinds = {
            "Unary": (grpc.unary_unary_rpc_method_handler, self.one),
            "UnaryStream": (grpc.unary_stream_rpc_method_handler, self.one_to_many),
            "StreamUnary": (grpc.stream_unary_rpc_method_handler, self.many_to_one),
            "Both": (grpc.stream_stream_rpc_method_handler, self.both),
        }
        make, method = kinds.get(details.method.rpartition("/")[2], (None, None))
        return make and make(method, *codec)


class Served:
    """A server that asks for tokens, and a channel that sends bytes as they are."""

    def __init__(self, people: Identities | None) -> None:
        tokens = TokenFile(people.path) if people else None
        self.echo = Echo()
        self.server = grpc.aio.server(
            interceptors=[ErrorInterceptor(Authentication(tokens))], options=server_options(LIMIT)
        )
        self.server.add_generic_rpc_handlers((self.echo,))
        aio: Any = vars(health)["aio"]  # not in its stubs
        servicer = aio.HealthServicer()
        add: Any = health_pb2_grpc.add_HealthServicer_to_server
        add(servicer, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.channel = open_channel(self.address)

    async def call(self, path: str, *messages: bytes, metadata: Any = None) -> list[bytes]:
        """Send messages on a stream, which fits a method of any kind; return the replies."""

        async def each() -> AsyncIterator[bytes]:
            for message in messages:
                yield message

        stream = self.channel.stream_stream(path)(each(), metadata=metadata, timeout=60)
        replies: list[bytes] = []
        async for reply in stream:
            replies.append(reply)
            if path.endswith("/UnaryStream"):
                stream.cancel()
                break
        return replies

    async def refusal(self, path: str, *messages: bytes, metadata: Any = None) -> SaxError:
        """Call until the refusal is read: one that crosses a message is a lost replica instead."""
        for _ in range(50):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await self.call(path, *messages, metadata=metadata)
            error = to_sax_error(caught.value, "the peer")
            if not isinstance(error, ReplicaLost):
                return error
        raise error


@pytest.fixture
def people(tmp_path: Path) -> Identities:
    return Identities(tmp_path, "alice")


@pytest.fixture
async def served(people: Identities) -> AsyncIterator[Served]:
    served = Served(people)
    await served.server.start()
    yield served
    await served.channel.close()
    await served.server.stop(None)


@pytest.fixture
async def open_to_all() -> AsyncIterator[Served]:
    served = Served(None)
    await served.server.start()
    yield served
    await served.channel.close()
    await served.server.stop(None)


@each_case("method", METHODS)
async def test_a_strangers_message_is_not_even_parsed(
    method: str, served: Served, people: Identities
) -> None:
    before = served.echo.parsed
    for name in ("", "mallory"):
        error = await served.refusal(f"/a.B/{method}", b"", metadata=people.metadata(name))
        assert type(error) is Unauthenticated
    assert served.echo.parsed == before
    await served.call(f"/a.B/{method}", b"", metadata=people.metadata("alice"))
    assert served.echo.parsed == before + 1


@each_case("method", METHODS)
async def test_a_strangers_large_message_is_refused_for_its_sender_and_not_for_its_size(
    method: str, served: Served
) -> None:
    assert type(await served.refusal(f"/a.B/{method}", bytes(2 * LIMIT))) is Unauthenticated


@pytest.mark.extended
async def test_strangers_may_probe_but_not_at_length(served: Served) -> None:
    assert await served.call("/grpc.health.v1.Health/Check", b"")
    error = await served.refusal("/grpc.health.v1.Health/Check", bytes(2 * LIMIT))
    assert type(error) is InvalidRequest
    error = await served.refusal("/grpc.health.v1.Health/Check")
    assert "send one" in error.text


@pytest.mark.extended
async def test_a_probe_is_answered_beside_strangers_that_hold_their_messages_back(
    served: Served,
) -> None:
    async def never() -> AsyncIterator[bytes]:
        await asyncio.sleep(3600)
        yield b""

    path = "/grpc.health.v1.Health/Check"
    held = [served.channel.stream_stream(path)(never()) for _ in range(12)]
    reading = [asyncio.ensure_future(each.read()) for each in held]
    async with open_channel(served.address) as channel:
        method = channel.unary_unary(
            path, response_deserializer=health_pb2.HealthCheckResponse.FromString
        )
        assert (await method(b"", timeout=60)).status == health_pb2.HealthCheckResponse.SERVING
    for each in held:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def test_the_opener_of_a_token_stream_is_known_but_lends_its_requests_nothing(
    people: Identities,
) -> None:
    authentication, path = Authentication(TokenFile(people.path)), "/sax.tokens.TokenService/Stream"
    token = people.tokens["alice"]
    authentication.enter(path, [("sax-opener", token)])
    for metadata in ([], [("sax-opener", "sax_wrong")], [("sax-opener", "")]):
        with pytest.raises(Unauthenticated):
            authentication.enter(path, metadata)
    with pytest.raises(Unauthenticated):
        authentication.enter("/sax.server.lm.LMService/Generate", [("sax-opener", token)])


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message_are_an_invalid_request_without_a_traceback(
    open_to_all: Served, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        error = await open_to_all.refusal(f"/a.B/{method}", GARBAGE)
    assert (type(error), error.param) == (InvalidRequest, "request")
    assert f"/a.B/{method}" in error.text
    assert open_to_all.echo.seen == []
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_request_that_is_nested_too_deeply_is_refused_and_is_no_bug(
    open_to_all: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deep = "[" * 100_000
    monkeypatch.setattr(open_to_all.echo, "take", lambda request: json.loads(deep))
    assert type(await open_to_all.refusal("/a.B/Unary", b"")) is InvalidRequest
    assert not caplog.records


async def test_garbage_in_mid_stream_ends_the_stream_after_what_came_before(
    open_to_all: Served,
) -> None:
    good = admin_pb2.ListRequest(model_id="x").SerializeToString()
    assert type(await open_to_all.refusal("/a.B/Both", good, GARBAGE, good)) is InvalidRequest
    assert len(open_to_all.echo.seen) == 1


@pytest.mark.extended
async def test_a_message_over_the_limit_names_the_limit_and_the_flag(open_to_all: Served) -> None:
    large = admin_pb2.ListRequest(model_id="x" * LIMIT).SerializeToString()
    error = await open_to_all.refusal("/a.B/Unary", large)
    assert (type(error), error.param) == (InvalidRequest, "request")
    assert str(LIMIT) in error.text
    assert "--max_message_bytes" in error.text
    assert open_to_all.echo.parsed == 0


async def test_a_message_that_unpacks_to_more_than_the_limit_is_refused(
    open_to_all: Served,
) -> None:
    call = open_to_all.channel.unary_unary("/a.B/Unary")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(bytes(64 * LIMIT), compression=grpc.Compression.Gzip, timeout=60)
    assert type(to_sax_error(caught.value, "the peer")) is InvalidRequest
    assert open_to_all.echo.parsed == 0


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection of garbage meanwhile: what is in a cycle stays."""
    gc.disable()
    yield
    gc.enable()


@each_case("method", METHODS)
@pytest.mark.usefixtures("uncollected")
async def test_a_refused_message_is_freed_at_once(method: str, open_to_all: Served) -> None:
    echo, kept = open_to_all.echo, list[weakref.ref[Refused]]()

    def parse(data: bytes) -> Refused:
        message = Refused(data)
        kept.append(weakref.ref(message))
        return message

    echo.parse = parse
    for _ in range(3):
        error = await open_to_all.refusal(f"/test.Echo/{method}", b"any")
        assert "refused" in error.text
    assert len(kept) >= 3
    await until(lambda: all(each() is None for each in kept))


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["cancel", "disconnect", "deadline"])
async def test_a_caller_that_leaves_is_no_error_in_the_log(
    open_to_all: Served, method: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b""
        await asyncio.sleep(0.5)

    with caplog.at_level(logging.INFO):
        channel = open_channel(open_to_all.address)
        limit_s = 0.1 if how == "deadline" else None
        call = channel.stream_stream(f"/a.B/{method}")(slowly(), timeout=limit_s)
        reading = asyncio.ensure_future(call.read())
        await asyncio.sleep(0.2)
        if how == "cancel":
            call.cancel()
        await channel.close()
        await asyncio.gather(reading, return_exceptions=True)
        await asyncio.sleep(0.2)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_error_repeats_no_more_than_200_characters_of_a_long_word(
    open_to_all: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = "".join(f"w{i}" for i in range(1000))

    async def refuse(request: Any, context: Any) -> Any:
        raise NotFound(f"no {word} here", param=word)

    monkeypatch.setattr(open_to_all.echo, "one", refuse)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await open_to_all.call("/a.B/Unary", b"")
    assert dict(caught.value.trailing_metadata() or ())[ERROR_KEY] == "NotFound"
    error = to_sax_error(caught.value, "the peer")
    assert word[:201] not in error.text
    assert len(error.text) < 300
    assert error.param == word[:200]
