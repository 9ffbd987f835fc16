"""One framed TCP connection between processes of a Pathways deployment. Belongs to the event loop.

Nagle's delay is off: with it, a step took a hundred milliseconds instead of five.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from model_server.pathways.link.frames import FrameReader, framed
from model_server.pathways.link.gathered_writer import GatheredWriter
from model_server.pathways.scheduling.merging import Buffer
from sax.errors import InvalidRequest

logger = logging.getLogger(__name__)

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


async def listen(
    address: str, make: Callable[[], Connection[M]], tls: ssl.SSLContext | None
) -> tuple[asyncio.Server, int]:
    """Listen at host:port (0: any). Returns the server and its port. Raises OSError."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, host.strip("[]") or None, int(port), ssl=tls)
    return server, server.sockets[0].getsockname()[1]
