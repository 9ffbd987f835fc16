"""Calls of grpc's own client, and of clients that break the protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from model_server.pathways.http2 import connection, frames
from model_server.pathways.http2.call import STREAM_WINDOW, GrpcCall
from model_server.pathways.http2.server import GrpcServer
from sax.auth.credentials import read_pem
from sax.errors import NotFound
from tests.each_case import each_case
from tests.model_server.pathways.certificates import issued
from tests.model_server.waiting import until

NO_LIMITS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Echo:
    """Sends back each message; `gone` counts how often it ended."""

    ended = 0

    def __init__(self, call: GrpcCall) -> None:
        self.call = call

    def received(self, message: bytes) -> None:
        if message == b"unknown":
            raise NotFound("there is no such thing; é")
        if message == b"broken":
            raise ZeroDivisionError("a fault of ours")
        self.call.send(message[:1], message[1:])

    def complete(self) -> None:
        self.call.end()

    def gone(self) -> None:
        Echo.ended += 1


@pytest.fixture
async def address() -> AsyncIterator[str]:
    Echo.ended = 0
    server = GrpcServer({"/test/Echo": Echo})
    yield f"127.0.0.1:{await server.start('127.0.0.1:0', None)}"
    await server.stop()


def echo(channel: grpc.aio.Channel, path: str = "/test/Echo") -> Any:
    return channel.stream_stream(path)


async def test_messages_of_any_size_come_back(address: str) -> None:
    sizes = [0, 1, 16384, 5 << 20, STREAM_WINDOW + 12345]
    async with grpc.aio.insecure_channel(address, options=NO_LIMITS) as channel:
        call = echo(channel)()
        for size in sizes:
            message = bytes([size % 251]) * size
            await call.write(message)
            assert await call.read() == message
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
    assert Echo.ended == 1


async def test_many_calls_share_a_connection(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:

        async def one(number: int) -> None:
            message = b"%d " % number * 5000
            call = echo(channel)(iter([message] * 3))
            assert [each async for each in call] == [message] * 3

        await asyncio.gather(*map(one, range(100)))
    assert Echo.ended == 100


@pytest.mark.parametrize(
    ("message", "code", "told"),
    [
        (b"unknown", grpc.StatusCode.NOT_FOUND, "there is no such thing; é"),
        (b"broken", grpc.StatusCode.INTERNAL, "ZeroDivisionError: a fault of ours"),
    ],
)
async def test_what_a_handler_raises_is_the_status(
    address: str, message: bytes, code: grpc.StatusCode, told: str
) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call = echo(channel)()
        await call.write(message)
        assert await call.code() == code
        assert await call.details() == told
        with pytest.raises(grpc.aio.AioRpcError, match="no method /test/Other"):
            await channel.unary_unary("/test/Other")(b"")


async def test_a_client_that_cancels_or_goes_ends_its_calls(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        first, second = echo(channel)(), echo(channel)()
        for call in (first, second):
            await call.write(b"abc")
            await call.read()
        first.cancel()
        await until(lambda: Echo.ended == 1)
    await until(lambda: Echo.ended == 2)


async def test_a_compressed_message_is_refused_in_words(address: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call = echo(channel)(compression=grpc.Compression.Gzip)
        await call.write(bytes(10000))
        assert await call.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_calls_are_encrypted_where_there_are_certificates(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    safety = issued(tmp_path, "server", authority)
    server = GrpcServer({"/test/Echo": Echo})
    port = await server.start("127.0.0.1:0", safety.server())
    for name, issuer in (("friend", authority), ("stranger", stranger)):
        own = issued(tmp_path, name, issuer)
        pair = [await asyncio.to_thread(read_pem, path, "") for path in (own.tls_key, own.tls_cert)]
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), *pair)
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            call = channel.stream_stream("/test/Echo")(iter([b"abc"]))
            if issuer is authority:
                assert [each async for each in call] == [b"abc"]
            else:
                assert await call.code() == grpc.StatusCode.UNAVAILABLE
    await server.stop()


# Clients that break the protocol

GREETING = frames.PREFACE + frames.settings({})


@asynccontextmanager
async def raw(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


def head(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return frames.frame_head(kind, flags, stream, len(body)) + body


CALL = frames.header_block(
    ((b":method", b"POST"), (b":path", b"/test/Echo"), (b"content-type", b"application/grpc"))
)
OPEN = head(frames.HEADERS, frames.END_HEADERS, 1, CALL)
WRONG: dict[str, bytes] = {
    "not HTTP/2": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(100),
    "a frame that is too large": GREETING + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "headers that are no headers": GREETING + head(1, frames.END_HEADERS, 1, b"\xff" * 50),
    "headers without end": GREETING + head(1, 0, 1, CALL) + head(9, 0, 1, bytes(1 << 20)) * 2,
    "interrupted headers": GREETING + head(1, 0, 1, CALL) + frames.ping(bytes(8)),
    "a call twice": GREETING + OPEN.replace(b"Echo", b"Gone") * 2,
    "a call of the server's": GREETING + head(1, frames.END_HEADERS, 2, CALL),
    "data of no call": GREETING + head(0, 0, 7, b"abc"),
    "padding without payload": GREETING + OPEN + head(0, frames.PADDED, 1, b"\x09"),
    "half a setting": GREETING + head(4, 0, 0, b"abc"),
    "a promise": GREETING + head(5, 0, 1, bytes(8)),
    "a window without end": GREETING + frames.window_update(0, frames.MOST_WINDOW),
    "a call's window without end": GREETING + OPEN + frames.window_update(1, frames.MOST_WINDOW),
    "a ping of a megabyte": GREETING + head(frames.PING, 0, 0, bytes(1 << 20)),
}


def code_of(told: bytes) -> int | None:
    """Return the code of the GOAWAY in what a server sent; None if there is none."""
    at = 0
    while at < len(told):
        length, kind = int.from_bytes(told[at : at + 3], "big"), told[at + 3]
        if kind == frames.GOAWAY:
            return int.from_bytes(told[at + frames.HEAD + 4 : at + frames.HEAD + 8], "big")
        at += frames.HEAD + length
    return None


async def test_whoever_breaks_the_protocol_is_told_and_the_server_lives(address: str) -> None:
    for what, wrong in WRONG.items():
        async with asyncio.timeout(60), raw(address) as (reader, writer):
            writer.write(wrong)
            assert code_of(await reader.read()) is not None, what
        async with grpc.aio.insecure_channel(address) as channel:
            call = echo(channel)(iter([b"abc"]))
            assert [each async for each in call] == [b"abc"], what


def reset(stream: int) -> bytes:
    return head(frames.HEADERS, frames.END_HEADERS, stream, CALL) + frames.rst_stream(stream, 8)


def data(stream: int, body: bytes) -> bytes:
    return head(frames.DATA, 0, stream, body)


SETTING = frames.settings({frames.INITIAL_WINDOW_SIZE: 1})
FLOODS: dict[str, bytes] = {
    "pings": frames.ping(bytes(8)) * 20_000,
    "answers to pings": frames.ping(bytes(8), frames.ACK) * 20_000,
    "settings": SETTING * 2000,
    "settings in one frame": head(4, 0, 0, SETTING[frames.HEAD :] * 20_000),
    "pieces of headers": head(1, 0, 1, CALL) + head(9, 0, 1, b"") * 20_000,
    "calls that are taken back": b"".join(reset(2 * at + 1) for at in range(2000)),
    "resets of calls that ended": reset(1) + frames.rst_stream(1, 8) * 20_000,
    "empty data": OPEN + data(1, b"") * 20_000,
    "padding alone": OPEN + head(frames.DATA, frames.PADDED, 1, b"\x00") * 20_000,
    "window updates": frames.window_update(0, 1) * 20_000,
    "window updates of a call": OPEN + frames.window_update(1, 1) * 20_000,
    "priorities": head(frames.PRIORITY, 0, 1, bytes(5)) * 20_000,
    "frames of no known kind": head(200, 0, 1, b"") * 20_000,
    "too many calls": b"".join(
        head(frames.HEADERS, frames.END_HEADERS, 2 * at + 1, CALL) for at in range(2500)
    ),
    "trailers": OPEN * 2000,
    "requests of a browser": b"".join(
        head(frames.HEADERS, frames.END_HEADERS, 2 * at + 1, b"") for at in range(2000)
    ),
}


@each_case("what", list(FLOODS))
async def test_a_flood_is_answered_with_calm_down_and_an_end(address: str, what: str) -> None:
    async with asyncio.timeout(60), raw(address) as (reader, writer):
        writer.write(GREETING + FLOODS[what])
        assert code_of(await reader.read()) == frames.ENHANCE_YOUR_CALM
    async with grpc.aio.insecure_channel(address) as channel:
        assert [each async for each in echo(channel)(iter([b"abc"]))] == [b"abc"]


class UnreadTransport(asyncio.Transport):
    """A transport to a peer that reads nothing."""

    def __init__(self, protocol: connection.GrpcConnection) -> None:
        super().__init__()
        self._protocol = protocol
        self._closing = False
        self._high = 0
        self.held = 0  # bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.held

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        before, self.held = self.held, self.held + sum(map(len, list_of_data))
        if before <= self._high < self.held:
            self._protocol.pause_writing()

    def is_closing(self) -> bool:
        return self._closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._closing = True


def fed(protocol: connection.GrpcConnection, data: bytes) -> None:
    for at in range(0, len(data), 1 << 16):
        piece = data[at : at + (1 << 16)]
        protocol.get_buffer(-1)[: len(piece)] = piece
        protocol.buffer_updated(len(piece))


NOWHERE = CALL.replace(b"/test/Echo", b"/test/None")
UNREAD: dict[str, Callable[[int], bytes]] = {
    "pings": lambda at: frames.ping(bytes(8)),
    "settings": lambda at: frames.settings({}),
    "calls of nothing": lambda at: head(1, frames.END_HEADERS, 2 * at + 1, NOWHERE),
    "web pages": lambda at: head(1, frames.END_HEADERS, 2 * at + 1, b""),
}


@each_case("what", list(UNREAD))
async def test_answers_do_not_pile_up_for_a_peer_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Also where it sends slowly enough to be no flood by its rate."""
    monkeypatch.setattr(frames, "_PER_S", 1e9)
    monkeypatch.setattr(connection, "_HIGH_WATER", 1 << 16)
    made = connection.GrpcConnection({}, lambda _: None, lambda _: None)
    transport = UnreadTransport(made)
    made.connection_made(transport)
    fed(made, GREETING)
    for at in range(100):
        if transport.is_closing():
            break
        fed(made, b"".join(map(UNREAD[what], range(1000 * at, 1000 * (at + 1)))))
        await asyncio.sleep(0)
    assert transport.is_closing()
    assert transport.held < 1 << 20
    made.connection_lost(None)


PIECE = b"\x00\x00\x01\x00\x00"  # before a message of 64 KiB


async def test_a_message_that_is_too_long_is_refused_before_it_comes(address: str) -> None:
    async with asyncio.timeout(60), raw(address) as (reader, writer):
        writer.write(GREETING + OPEN + data(1, b"\x00\xff\xff\xff\xff" + bytes(100)))
        told = await reader.readuntil(b"constants")
        assert b"grpc-status\x018" in told
        assert b"a message of 4294967295 bytes: this server takes up to 1073741824" in told
        writer.write(data(1, bytes(1000)))  # it is of no interest
    await until(lambda: Echo.ended == 1)


async def test_incomplete_messages_of_a_connection_have_one_bound(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MOST_MESSAGE", 2500)
    async with asyncio.timeout(60), raw(address) as (reader, writer):
        opened = [head(1, frames.END_HEADERS, stream, CALL) for stream in (1, 3, 5, 7)]
        writer.write(GREETING + b"".join(opened))
        for stream in (1, 3):
            writer.write(data(stream, PIECE + bytes(1000)))
        writer.write(frames.rst_stream(1, 8))  # whose bytes are free again
        for stream in (5, 7):
            writer.write(data(stream, PIECE + bytes(1000)))
        told = await reader.readuntil(b"constants")
        assert b"incomplete messages of 3015 bytes" in told
        await until(lambda: Echo.ended == 2)


async def test_a_window_that_the_client_fills_is_widened_only_as_it_is_read(address: str) -> None:
    """A handler that pauses takes no more than a window; one that goes on takes all."""
    calls: list[GrpcCall] = []

    def open_paused(call: GrpcCall) -> Echo:
        calls.append(call)
        call.pause()
        return Echo(call)

    server = GrpcServer({"/test/Paused": open_paused})
    port = await server.start("127.0.0.1:0", None)
    piece = bytes(1 << 20)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=NO_LIMITS) as channel:
        call = echo(channel, "/test/Paused")()
        writing = asyncio.create_task(_write(call, piece, 100))
        reading = asyncio.create_task(_read(call))
        await until(lambda: bool(calls) and calls[0].left < 1 << 20)
        assert not writing.done()
        calls[0].resume()
        async with asyncio.timeout(60):
            await writing
            assert await reading == 100
    await server.stop()


async def _write(call: Any, piece: bytes, count: int) -> None:
    for _ in range(count):
        await call.write(piece)
    await call.done_writing()


async def _read(call: Any) -> int:
    return len([each async for each in call])


async def test_a_client_that_does_not_answer_is_dropped(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PING_S", 0.02), ("_DEAD_S", 0.05), ("_TICK_S", 0.01)):
        monkeypatch.setattr(connection, name, seconds)
    async with asyncio.timeout(60), raw(address) as (reader, writer):
        writer.write(GREETING + OPEN)
        await reader.read()  # until it ends
    await until(lambda: Echo.ended == 1)


async def test_a_server_that_stood_still_does_not_blame_its_clients(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_PING_S", 0.1), ("_DEAD_S", 0.6), ("_TICK_S", 0.02)):
        monkeypatch.setattr(connection, name, seconds)
    async with raw(address) as (reader, writer):
        writer.write(GREETING + OPEN)
        await asyncio.sleep(0.05)
        time.sleep(1.0)  # as if the process had been stopped  # noqa: ASYNC251
        assert await lasts(reader, 0.25)  # the client takes a while to answer the ping
        writer.write(frames.ping(b"are you?", frames.ACK))
        assert await lasts(reader, 0.25)


async def lasts(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Read for a while; tell whether the connection is still there."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        return True
    return False


async def test_a_client_that_reads_nothing_holds_up_nobody_else(address: str) -> None:
    async with grpc.aio.insecure_channel(address, options=NO_LIMITS) as channel:
        slow, quick = echo(channel)(), echo(channel)()
        await slow.write(bytes(30 << 20))
        for _ in range(10):
            await quick.write(b"abc")
            assert await quick.read() == b"abc"
        assert len(await slow.read()) == 30 << 20
