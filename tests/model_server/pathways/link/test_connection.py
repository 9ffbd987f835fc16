from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from model_server.pathways.link import messages
from model_server.pathways.link.connection import (
    SMALL,
    Connection,
    FrameReader,
    connect,
    framed,
    listen,
)
from model_server.pathways.link.safety import LinkSafety
from sax.errors import InvalidRequest
from tests.model_server.pathways.certificates import issued
from tests.model_server.waiting import until

Peer = Connection[messages.Message]


class End:
    """One end of a connection that remembers what came."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.received: list[tuple[messages.Message, bytes]] = []
        self.ended: list[str] = []

    def protocol(self) -> Peer:
        def ended(peer: Peer) -> None:
            self.ended.append(peer.why)

        return Connection(messages.DECODER, self._take, ended, self.peers.append)

    async def close(self) -> None:
        for peer in self.peers:
            peer.close()
        await until(lambda: len(self.ended) == len(self.peers))

    def _take(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        self.received.append((message, bytes(body)))


@pytest.fixture
def server() -> End:
    return End()


@pytest.fixture
async def client() -> AsyncIterator[End]:
    made = End()
    yield made
    await made.close()


async def serving(server: End, safety: LinkSafety) -> AsyncIterator[str]:
    listening, port = await listen("127.0.0.1:0", server.protocol, safety.server())
    yield f"127.0.0.1:{port}"
    listening.close()
    await server.close()


@pytest.fixture
async def address(server: End) -> AsyncIterator[str]:
    async for each in serving(server, LinkSafety()):
        yield each


async def test_messages_and_bodies_go_both_ways(server: End, client: End, address: str) -> None:
    peer = await connect(address, client.protocol, None)
    large = bytes(5 << 20)
    told = messages.RunResponse(7, 3, [(1, len(large))])
    peer.send(told, [b"abc", large])
    await until(lambda: len(server.received) == 1)
    assert server.received == [(told, b"abc" + large)]
    server.peers[0].send(messages.Forget(9))
    await until(lambda: client.received == [(messages.Forget(9), b"")])


async def test_small_messages_are_not_held_back(server: End, client: End, address: str) -> None:
    peer = await connect(address, client.protocol, None)
    transport = peer._transport
    assert transport is not None
    found = transport.get_extra_info("socket")
    assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_both_ends_notice_the_end(server: End, client: End, address: str) -> None:
    peer = await connect(address, client.protocol, None)
    peer.send(messages.Forget(1))
    await until(lambda: bool(server.received))
    peer.close()
    await until(lambda: bool(server.ended and client.ended))
    peer.send(messages.Forget(2))  # nothing happens
    assert not peer.open


async def test_half_a_message_is_freed_when_its_connection_ends(
    server: End, client: End, address: str
) -> None:
    peer = await connect(address, client.protocol, None)
    assert peer._transport is not None
    head, *_ = framed(b"", [bytes(8 << 20)])
    peer._transport.writelines([head, bytes(1 << 20)])
    await until(lambda: bool(server.peers) and len(server.peers[0].get_buffer(-1)) > SMALL)
    peer.close()
    await until(lambda: bool(server.ended))
    assert len(server.peers[0].get_buffer(-1)) == 0


@pytest.mark.parametrize("bad", [b"GET / HTTP/1.1\r\n\r\n", b"\x01\0\0\0" + bytes(8) + b"\xc1"])
async def test_what_is_no_message_ends_the_connection_and_no_other(
    server: End, client: End, address: str, bad: bytes
) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(bad)
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()
    peer = await connect(address, client.protocol, None)
    peer.send(messages.Forget(1))
    await until(lambda: bool(server.received))


async def test_only_holders_of_certificates_connect(
    server: End, client: End, tmp_path: Path
) -> None:
    authority = trustme.CA()
    ours = issued(tmp_path, "ours", authority)
    strange = issued(tmp_path, "strange", trustme.CA())
    async for address in serving(server, ours):
        peer = await connect(address, client.protocol, ours.client())
        peer.send(messages.Forget(1), [bytes(1 << 20)])
        await until(lambda: len(server.received) == 1)
        with pytest.raises(ssl.SSLError):
            await connect(address, End().protocol, strange.client())
        plain = await connect(address, (end := End()).protocol, None)
        plain.send(messages.Forget(2))
        await until(lambda end=end: bool(end.ended))
        assert len(server.received) == 1


Frames = list[tuple[bytes, bytes]]


def read(stream: bytes, sizes: list[int]) -> Frames:
    """Feed a stream in pieces of these sizes, over and over."""
    found: Frames = []
    reader = FrameReader(lambda head, body: found.append((bytes(head), bytes(body))))
    at = turn = 0
    while at < len(stream):
        space = reader.space()
        assert len(space)
        count = min(len(space), sizes[turn % len(sizes)], len(stream) - at)
        space[:count] = stream[at : at + count]
        reader.read(count)
        at += count
        turn += 1
    return found


def joined(frames: Frames) -> bytes:
    return b"".join(bytes(part) for head, body in frames for part in framed(head, [body]))


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=90)), max_size=12),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
)
def test_frames_are_read_however_they_are_cut(frames: Frames, sizes: list[int]) -> None:
    assert read(joined(frames), sizes) == frames


def test_large_bodies_are_read_between_small_ones() -> None:
    for size in (0, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL):
        frames = [(b"first", b"x"), (b"large", bytes(size)), (b"last", b"y")] * 2
        for piece in (1000, SMALL, 10 * SMALL):
            assert read(joined(frames), [piece]) == frames, (size, piece)


def test_parts_of_a_body_are_not_joined_before_they_are_written() -> None:
    data = bytes(100)
    parts = framed(b"head", [b"", data])
    assert parts[1] is data
    assert len(parts) == 2


def test_a_head_has_a_limit() -> None:
    with pytest.raises(InvalidRequest, match="fewer buffers"):
        framed(bytes(SMALL))


def test_what_are_no_frames_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no frames"):
        read(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", [100])
