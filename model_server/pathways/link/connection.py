"""One framed TCP connection between processes of a Pathways deployment. Belongs to the event loop.

Nagle's delay is off: with it, a step took a hundred milliseconds instead of five.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from model_server.pathways.link.gathered_writer import GatheredWriter
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.answers import Buffer
from sax.errors import InvalidRequest

logger = logging.getLogger(__name__)


# A frame is a small head that describes the body, and a body of raw bytes that is not copied:
# 4 bytes: length of the head, little-endian; 8 bytes: length of the body; the head: a message in
# MessagePack, with the lengths of the body's parts; the body.

_LENGTHS = struct.Struct("<IQ")
SMALL = 256 << 10  # bytes that are read at a time; a larger body is read where it stays
_MOST_HEAD = SMALL - _LENGTHS.size
_MOST_BODY = 1 << 40
Taken = Callable[[memoryview, memoryview], None]  # head, body


def framed(head: bytes, parts: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return a frame as buffers to write one after the other. Raises InvalidRequest."""
    if len(head) > _MOST_HEAD:
        raise InvalidRequest(
            f"a message with a head of {len(head)} bytes, more than {_MOST_HEAD}: send fewer "
            "buffers at a time"
        )
    size = sum(len(part) for part in parts)
    return [_LENGTHS.pack(len(head), size) + head, *(part for part in parts if len(part))]


class FrameReader:
    """Cuts a stream of bytes into frames. The caller reads into `space` and says how much."""

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self._small = memoryview(bytearray(SMALL))
        self._start = self._end = 0  # of what was read and not cut yet
        self._head = memoryview(b"")
        self._body: memoryview | None = None  # of a frame that is being read
        self._filled = 0

    def space(self) -> memoryview:
        """Return where to read to."""
        if self._body is not None:
            return self._body[self._filled :]
        return self._small[self._end :]

    def read(self, count: int) -> None:
        """Take note of bytes read. Raises InvalidRequest for what are no frames."""
        if self._body is None:
            self._end += count
            while self._cut():
                pass
            return
        self._filled += count
        self._complete()

    def close(self) -> None:
        """Free what was read: a large frame may never become whole."""
        self._small, self._body = memoryview(b""), None

    def _cut(self) -> bool:
        """Take one frame from the small buffer; False if it is not all there."""
        here = self._end - self._start
        if here < _LENGTHS.size:
            self._move()
            return False
        head, body = _LENGTHS.unpack_from(self._small, self._start)
        if head > _MOST_HEAD or body > _MOST_BODY:
            raise InvalidRequest("bytes that are no frames: is this port the one of a worker?")
        if here < _LENGTHS.size + head:
            self._move()
            return False
        at = self._start + _LENGTHS.size
        self._head = memoryview(bytes(self._small[at : at + head]))
        at += head
        self._body = memoryview(bytearray(body))
        self._filled = min(body, self._end - at)
        self._body[: self._filled] = self._small[at : at + self._filled]
        self._start = at + self._filled
        return self._complete()

    def _complete(self) -> bool:
        """Hand over the frame once its body is whole."""
        body = self._body
        if body is None or self._filled < len(body):
            self._move()
            return False
        self._body = None
        self._taken(self._head, body)
        return True

    def _move(self) -> None:
        """Make room at the end of the small buffer."""
        rest = self._end - self._start
        self._small[:rest] = bytes(self._small[self._start : self._end])
        self._start, self._end = 0, rest


_encode = msgspec.msgpack.Encoder().encode
_HIGH_WATER = 64 << 20
M = TypeVar("M")


class Connection(asyncio.BufferedProtocol, Generic[M]):
    """Sends and receives messages with their bodies."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[M],
        received: Callable[[Connection[M], M, memoryview], None],
        ended: Callable[[Connection[M]], None],
        opened: Callable[[Connection[M]], None] | None = None,
    ) -> None:
        """received: called with each message and its body. ended: called once, at the end."""
        self._decoder = decoder
        self._received = received
        self._ended = ended
        self._opened = opened
        self._reader = FrameReader(self._take)
        self._transport: asyncio.Transport | None = None
        self._writer: GatheredWriter | None = None
        self.why = ""  # it ended

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def peer(self) -> str:
        """host:port of the other end."""
        found = self._transport and self._transport.get_extra_info("peername")
        return f"{found[0]}:{found[1]}" if found else "a closed connection"

    def send(self, message: Any, parts: Sequence[Buffer] = ()) -> None:
        """Write a message and its body soon; nothing once the connection has ended."""
        if self._writer is not None:
            self._writer.write(framed(_encode(message), parts))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(_HIGH_WATER)
        self._writer = GatheredWriter(self._transport)
        if (found := transport.get_extra_info("socket")) is not None:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._opened is not None:
            self._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.read(nbytes)
        except InvalidRequest as error:
            self._refuse(error.text)

    def connection_lost(self, exc: Exception | None) -> None:
        self.why = self.why or (f"its connection ended: {exc}" if exc else "its connection ended")
        self._transport = self._writer = None
        self._reader.close()  # which refers to this, and this to it: they may stay for long
        self._ended(self)

    def _take(self, head: memoryview, body: memoryview) -> None:
        if not self.open:
            return
        try:
            message = self._decoder.decode(head)
        except msgspec.MsgspecError as exc:
            self._refuse(f"a message of a kind that is not known here ({exc})")
        else:
            self._received(self, message, body)

    def _refuse(self, why: str) -> None:
        logger.error("connection with %s: %s", self.peer, why)
        self.why = why
        self.close()


async def connect(
    address: str, make: Callable[[], Connection[M]], tls: ssl.SSLContext | None
) -> Connection[M]:
    """Open a connection to host:port. Raises OSError."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(
        make, host.strip("[]"), int(port), ssl=tls, server_hostname=host if tls else None
    )
    return made


class Listener(Generic[M]):
    """Accepts connections and keeps those that are open. Belongs to the event loop."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[M]) -> None:
        self._decoder = decoder
        self._peers: set[Connection[M]] = set()
        self._server: asyncio.Server | None = None

    async def open(self, address: str, safety: LinkSafety) -> int:
        """Listen and return the port. Raises OSError."""
        self._server, port = await listen(address, self._protocol, safety.server())
        return port

    def close(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.close()

    def opened(self, peer: Connection[M]) -> None:
        """Take note of a new connection."""
        self._peers.add(peer)

    def received(self, peer: Connection[M], message: M, body: memoryview) -> None:
        raise NotImplementedError

    def ended(self, peer: Connection[M]) -> None:
        """Free what belongs to a connection that has ended."""
        self._peers.discard(peer)

    def _protocol(self) -> Connection[M]:
        return Connection(self._decoder, self.received, self.ended, self.opened)


async def listen(
    address: str, make: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
) -> tuple[asyncio.Server, int]:
    """Listen at host:port (0: any). Returns the server and its port. Raises OSError."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, host.strip("[]") or None, int(port), ssl=tls)
    return server, server.sockets[0].getsockname()[1]
