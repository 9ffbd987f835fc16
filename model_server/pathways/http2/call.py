"""One gRPC call, as its server sees it.

Source: the gRPC protocol over HTTP/2 (PROTOCOL-HTTP2.md of the grpc repository).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

import grpc

from model_server.pathways.http2 import frames
from model_server.pathways.scheduling.answers import Buffer
from sax.errors import SaxError, meaning

STREAM_WINDOW = 1 << 26  # bytes that a client may send before they are taken
MOST_MESSAGE = 1 << 30  # bytes of one message, and of those of one connection that are incomplete
_PREFIX = 5  # bytes before a message: is it compressed, and its length
_MOST_PENDING = 1 << 26  # bytes of a call that wait to be sent, before `room` waits
_LONGEST_TEXT = 4096
_UNIMPLEMENTED, _INVALID, _EXHAUSTED = 12, 3, 8

Headers = Mapping[bytes, bytes]
Pump = Callable[["GrpcCall"], None]


class CallHandler:
    """The server's side of one call. Belongs to the event loop."""

    def received(self, message: bytes) -> None:
        """Take a message of the client. Raises SaxError, which ends the call."""
        raise NotImplementedError

    def complete(self) -> None:
        """Take note that the client sends no more. Raises SaxError, which ends the call."""

    def gone(self) -> None:
        """Free everything: the call has ended, on either side. Called once."""


class GrpcCall:
    """One call: its metadata, the messages to send and its status. Belongs to the event loop."""

    def __init__(self, stream: int, headers: Headers, peer: str, window: int, pump: Pump) -> None:
        """window: bytes that the client takes of this stream. pump: called when there is more."""
        self.stream = stream
        self.peer = peer  # host:port of the client
        self.window = window
        self.pending: deque[memoryview] = deque()  # of messages, to be sent
        self.pending_bytes = 0
        self.begun = False  # the response's headers are sent
        self.complete = False  # the client sends no more
        self.status: tuple[int, str] | None = None  # gRPC's, once the handler is done
        self.handler: CallHandler | None = None
        self.held = 0  # bytes that came and do not widen the client's window yet
        self.left = STREAM_WINDOW  # bytes that the client may send
        self.reading = True
        self._headers = headers
        self._pump = pump
        self._room = asyncio.Event()
        self._came = bytearray()

    @property
    def collected(self) -> int:
        """Bytes of a message that is incomplete."""
        return len(self._came)

    @property
    def path(self) -> str:
        return self._headers.get(b":path", b"").decode(errors="replace")

    def metadata(self, key: str) -> bytes | None:
        """Return binary metadata (its key ends in -bin); None if there is none such."""
        found = self._headers.get(key.encode())
        if found is None:
            return None
        try:
            return base64.b64decode(found + b"=" * (-len(found) % 4), validate=True)
        except binascii.Error:
            return None

    # The handler's side

    def send(self, *parts: Buffer) -> None:
        """Send one message, whose bytes must not change until they are sent; none after the end."""
        if self.status is not None:
            return
        length = sum(map(len, parts))
        self.pending.append(memoryview(b"\x00" + length.to_bytes(4, "big")))
        self.pending.extend(memoryview(part).cast("B") for part in parts if len(part))
        self.pending_bytes += _PREFIX + length
        self._pump(self)

    def end(self, code: int = 0, text: str = "") -> None:
        """End the call with a status, after all messages. Idempotent."""
        if self.status is None:
            self.status = (code, text[:_LONGEST_TEXT])
            self._pump(self)

    def refuse(self, error: SaxError) -> None:
        """End the call with an error."""
        self.end(grpc.StatusCode[meaning(error).grpc].value[0], error.text)

    def pause(self) -> None:
        """Let the client send no more than its window."""
        self.reading = False

    def resume(self) -> None:
        if not self.reading:
            self.reading = True
            self._pump(self)

    async def room(self) -> None:
        """Wait until little waits to be sent."""
        while self.pending_bytes > _MOST_PENDING and self.status is None:
            self._room.clear()
            await self._room.wait()

    # The connection's side

    def came(self, data: memoryview) -> Sequence[bytes]:
        """Take bytes and return the messages that are complete. Raises MessageFault.

        Those of a call that has its status are dropped: it may take a while to be told.
        """
        if self.status is not None:
            self._came.clear()
            return ()
        self._came += data
        found: list[bytes] = []
        at = 0
        while len(self._came) - at >= _PREFIX:
            if self._came[at]:
                raise MessageFault(_UNIMPLEMENTED, "compressed messages are not taken here")
            length = int.from_bytes(self._came[at + 1 : at + _PREFIX], "big")
            if length > MOST_MESSAGE:
                raise MessageFault(_EXHAUSTED, _TOO_LONG.format(f"a message of {length}"))
            if len(self._came) - at - _PREFIX < length:
                break
            at += _PREFIX + length
            found.append(bytes(memoryview(self._came)[at - length : at]))
        if at:
            del self._came[:at]
        return found

    def ended(self) -> None:
        """Take note that the client sends no more. Raises MessageFault for half a message."""
        self.complete = True
        if self._came and self.status is None:
            raise MessageFault(_INVALID, "the call ended within a message")

    def take(self, room: int) -> list[memoryview]:
        """Remove and return up to `room` bytes that wait to be sent."""
        taken: list[memoryview] = []
        while self.pending and room:
            part = self.pending.popleft()
            if len(part) > room:
                self.pending.appendleft(part[room:])
                part = part[:room]
            room -= len(part)
            self.pending_bytes -= len(part)
            taken.append(part)
        self._room.set()
        return taken

    def over(self) -> None:
        """Drop all pending bytes and end the handler."""
        self.pending.clear()
        self.pending_bytes = 0
        self.status = self.status or (1, "")
        self._room.set()
        self._came.clear()
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.gone()


_TOO_LONG = (
    f"{{}} bytes: this server takes up to {MOST_MESSAGE} at a time; large arrays are arguments of "
    "a program, not constants in it"
)


class MessageFault(Exception):
    """A call that cannot be read: it ends with this gRPC status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def too_much(collected: int) -> MessageFault:
    """Return the fault of a connection with so many bytes of incomplete messages."""
    return MessageFault(_EXHAUSTED, _TOO_LONG.format(f"incomplete messages of {collected}"))


RESPONSE = frames.header_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
WRONG_TYPE = frames.header_block(((b":status", b"415"),))
_OK = frames.header_block(((b"grpc-status", b"0"),))


def trailers(code: int, text: str) -> bytes:
    """Return the header block that ends a response."""
    if not code:
        return _OK
    told = quote(text, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return frames.header_block(((b"grpc-status", b"%d" % code), (b"grpc-message", told.encode())))
