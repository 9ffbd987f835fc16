"""Errors across a real connection, from every kind of method."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from sax import errors
from sax.errors import (
    TABLE,
    AdminUnavailable,
    DeadlineExceeded,
    Internal,
    NotFound,
    ReplicaLost,
    SaxError,
    UnsupportedParameter,
)
from sax.need import Need
from sax.proto import admin_pb2
from sax.wire import rpc
from sax.wire.interceptor import ErrorInterceptor
from tests.each_case import each_case


class Raising(grpc.GenericRpcHandler):
    """Methods Unary, Stream, Both and Wait that raise what they are told to, after a reply."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    async def unary(self, request: Any, context: Any) -> Any:
        if self.error:
            raise self.error
        return request

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield request
        if self.error:
            raise self.error

    async def both(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            yield request
            if self.error:
                raise self.error

    async def wait(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(3600)

    def service(self, details: Any) -> Any:
        codec = (admin_pb2.ListRequest.FromString, admin_pb2.ListRequest.SerializeToString)
        match details.method.rpartition("/")[2]:
            case "Unary":
                return grpc.unary_unary_rpc_method_handler(self.unary, *codec)
            case "Stream":
                return grpc.unary_stream_rpc_method_handler(self.stream, *codec)
            case "Both":
                return grpc.stream_stream_rpc_method_handler(self.both, *codec)
            case "Wait":
                return grpc.unary_unary_rpc_method_handler(self.wait, *codec)
            case _:
                return None


class Peer:
    """A running server and a channel to it."""

    def __init__(self) -> None:
        self.handler = Raising()
        self.server = grpc.aio.server(
            interceptors=[ErrorInterceptor()], options=rpc.server_options()
        )
        self.server.add_generic_rpc_handlers((self.handler,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.channel = rpc.open_channel(f"127.0.0.1:{self.port}")

    async def unary(self, method: str = "Unary", timeout_s: float = 20.0) -> admin_pb2.ListRequest:
        return await rpc.call(
            self.channel,
            f"/test.Service/{method}",
            admin_pb2.ListRequest(model_id="x"),
            admin_pb2.ListRequest,
            peer="the peer",
            timeout_s=timeout_s,
            unavailable=AdminUnavailable,
        )

    def stream(self, method: str = "Stream") -> Any:
        return rpc.call_stream(
            self.channel,
            f"/test.Service/{method}",
            admin_pb2.ListRequest(model_id="x"),
            admin_pb2.ListRequest,
            peer="the peer",
            timeout_s=60.0,
        )


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    await peer.server.start()
    yield peer
    await peer.channel.close()
    await peer.server.stop(None)


@each_case("cls", TABLE)
async def test_every_error_crosses_the_wire_whole(cls: type[SaxError], peer: Peer) -> None:
    text, need = "naïve text: 3 > 2\nsecond line", Need(devices=32, memory=2**40, weights=7)
    peer.handler.error = cls(text, param="extra.é", retry_after_s=0.25, need=need)
    with pytest.raises(SaxError) as caught:
        await peer.unary()
    error = caught.value
    assert type(error) is cls
    assert error.text == "naïve text: 3 > 2\nsecond line"
    assert (error.param, error.retry_after_s) == ("extra.é", 0.25)
    assert error.need == need


async def test_the_status_code_is_the_tables_for_clients_that_know_only_grpc(peer: Peer) -> None:
    for cls, line in TABLE.items():
        peer.handler.error = cls("text")
        call = peer.channel.unary_unary("/test.Service/Unary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
        assert caught.value.code().name == line.grpc
        assert caught.value.details() == "text"


async def test_an_error_in_mid_stream_comes_after_what_was_sent(peer: Peer) -> None:
    peer.handler.error = errors.QueueFull("full", retry_after_s=1.0)
    for method in ("Stream", "Both"):
        messages = peer.stream(method)
        assert (await anext(messages)).model_id == "x"
        with pytest.raises(errors.QueueFull, match="full"):
            await anext(messages)


async def test_any_other_exception_is_internal_logged_and_told_to_nobody(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.handler.error = KeyError("secret")
    with caplog.at_level(logging.ERROR), pytest.raises(Internal) as caught:
        await peer.unary()
    assert "secret" not in caught.value.text
    assert "secret" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_very_long_text_arrives_cut_instead_of_breaking_the_call(peer: Peer) -> None:
    peer.handler.error = NotFound("é" * 100_000, param="p" * 100_000)
    with pytest.raises(SaxError) as caught:
        await peer.unary()
    assert type(caught.value) is NotFound
    assert caught.value.text.startswith("éééé")
    assert (caught.value.param or "").startswith("pppp")


async def test_half_a_character_in_a_text_does_not_lose_the_error(peer: Peer) -> None:
    peer.handler.error = NotFound("no \ud800", param="\udfff")
    with pytest.raises(NotFound, match=r"no \?"):
        await peer.unary()


async def test_without_an_error_messages_pass_unchanged(peer: Peer) -> None:
    assert (await peer.unary()).model_id == "x"
    assert [message.model_id async for message in peer.stream()] == ["x"]


async def test_a_late_reply_is_deadline_exceeded(peer: Peer) -> None:
    with pytest.raises(DeadlineExceeded, match="the peer"):
        await peer.unary("Wait", timeout_s=0.05)


async def test_an_unknown_method_is_an_error_that_names_the_peer(peer: Peer) -> None:
    with pytest.raises(UnsupportedParameter, match="the peer"):
        await peer.unary("Missing")


@pytest.mark.extended
async def test_nobody_listening_is_what_the_caller_says_it_means() -> None:
    silent = Peer()  # bound, never started
    await silent.server.stop(None)
    with pytest.raises(AdminUnavailable, match="the peer does not answer"):
        await silent.unary()
    with pytest.raises(ReplicaLost, match="the peer does not answer"):
        await anext(silent.stream())
    await silent.channel.close()


async def test_a_port_that_speaks_http_is_told_from_a_server_that_is_not_there() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as http:
        port = http.sockets[0].getsockname()[1]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(AdminUnavailable, match="the peer speaks HTTP, and not gRPC"):
                await rpc.call(
                    channel,
                    "/test.Service/Unary",
                    admin_pb2.ListRequest(),
                    admin_pb2.ListRequest,
                    peer="the peer",
                    timeout_s=20.0,
                    unavailable=AdminUnavailable,
                )


async def test_a_server_that_stops_in_mid_call_is_lost_and_no_cancellation(peer: Peer) -> None:
    call = asyncio.create_task(peer.unary("Wait"))
    await asyncio.sleep(0.1)
    await peer.server.stop(None)
    with pytest.raises(AdminUnavailable):
        await call


async def test_a_message_of_many_megabytes_passes(peer: Peer) -> None:
    big = admin_pb2.ListRequest(model_id="x" * 20_000_000)
    reply = await rpc.call(
        peer.channel,
        "/test.Service/Unary",
        big,
        admin_pb2.ListRequest,
        peer="the peer",
        timeout_s=60.0,
    )
    assert len(reply.model_id) == 20_000_000


@each_case("code", list(grpc.StatusCode))
def test_every_grpc_code_stands_for_some_error(code: grpc.StatusCode) -> None:
    assert issubclass(rpc.error_class(code), SaxError)


def test_a_message_that_crosses_the_end_of_its_call_meets_a_lost_peer() -> None:
    nothing = grpc.aio.Metadata()
    crossed = grpc.aio.AioRpcError(
        grpc.StatusCode.INTERNAL, nothing, nothing, "Internal error from Core"
    )
    assert type(rpc.to_sax_error(crossed, "the peer")) is ReplicaLost
