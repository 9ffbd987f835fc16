"""Frames of HTTP/2, read and written.

Source: RFC 9113, sections 4 and 6; RFC 7541, section 6.2, for header blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME = 1 << 22  # bytes of a payload, which we announce
HEAD = 9  # bytes before a payload
WINDOW = 65535  # a connection's, and a stream's until settings say otherwise
MOST_WINDOW = (1 << 31) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9

END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 0, 1, 3, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 8, 9, 11

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6

_PING_BYTES = 8
_ROOM = 1 << 18  # bytes that are read at once
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
SETTING_BYTES = _SETTING.size
_GOAWAY = struct.Struct(">II")


class ConnectionFault(Exception):
    """A peer that breaks the protocol: the connection ends with this code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frame(NamedTuple):
    """One frame. Its payload is valid only while it is taken."""

    kind: int
    flags: int
    stream: int
    payload: memoryview


class Http2Reader:
    """Cuts what a client sends into frames, after its preface."""

    def __init__(self, take: Callable[[Frame], None]) -> None:
        self._take = take
        self._buffer = bytearray(_ROOM)
        self._from = self._to = 0  # range of bytes that are read and not taken
        self._greeted = False

    def space(self) -> memoryview:
        """Return the buffer for the next bytes received: never empty."""
        if self._from == self._to:
            self._from = self._to = 0
        needed = self._missing()
        if len(self._buffer) - self._to < needed:
            held = self._buffer[self._from : self._to]
            if len(self._buffer) < len(held) + needed:
                self._buffer = bytearray(len(held) + needed)  # a view may still be on the old one
            self._buffer[: len(held)] = held
            self._from, self._to = 0, len(held)
        return memoryview(self._buffer)[self._to :]

    def read(self, count: int) -> None:
        """Take the frames that are complete. Raises ConnectionFault."""
        self._to += count
        if not self._greeted and not self._greet():
            return
        while (end := self._end()) is not None and end <= self._to:
            at, self._from = self._from, end
            _, _, kind, flags, stream = _HEAD.unpack_from(self._buffer, at)
            payload = memoryview(self._buffer)[at + HEAD : end]
            self._take(Frame(kind, flags, stream & MOST_WINDOW, payload))

    def close(self) -> None:
        """Free what was read: a large frame may never become whole."""
        self._buffer = bytearray()

    def _greet(self) -> bool:
        told = bytes(self._buffer[self._from : min(self._to, self._from + len(PREFACE))])
        if not PREFACE.startswith(told):
            raise ConnectionFault(PROTOCOL_ERROR, "it does not begin as HTTP/2 does")
        self._greeted = told == PREFACE
        if self._greeted:
            self._from += len(PREFACE)
        return self._greeted

    def _end(self) -> int | None:
        """Return where the next frame ends; None while its head is incomplete."""
        if self._to - self._from < HEAD:
            return None
        length = int.from_bytes(self._buffer[self._from : self._from + 3], "big")
        if length > MAX_FRAME:
            raise ConnectionFault(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        return self._from + HEAD + length

    def _missing(self) -> int:
        """Return how many bytes at least to make room for."""
        end = self._end() if self._greeted else None
        return max(_ROOM // 4, (end or 0) - self._to)


def frame_head(kind: int, flags: int, stream: int, length: int) -> bytes:
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def settings(values: Mapping[int, int]) -> bytes:
    body = b"".join(_SETTING.pack(*each) for each in values.items())
    return frame_head(SETTINGS, 0, 0, len(body)) + body


def settings_of(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Yield names and values. Raises ConnectionFault."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, "settings that are cut off")
    yield from _SETTING.iter_unpack(payload)


def number_of(payload: memoryview) -> int:
    """Return the value of a WINDOW_UPDATE or RST_STREAM. Raises ConnectionFault."""
    if len(payload) != _LENGTH.size:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a number that is not four bytes")
    return _LENGTH.unpack(payload)[0]


def eight_of(payload: memoryview) -> bytes:
    """Return what a PING holds. Raises ConnectionFault."""
    if len(payload) != _PING_BYTES:
        raise ConnectionFault(FRAME_SIZE_ERROR, "a ping that is not eight bytes")
    return bytes(payload)


def window_update(stream: int, count: int) -> bytes:
    return frame_head(WINDOW_UPDATE, 0, stream, 4) + _LENGTH.pack(count)


def rst_stream(stream: int, code: int) -> bytes:
    return frame_head(RST_STREAM, 0, stream, 4) + _LENGTH.pack(code)


def ping(payload: bytes, flags: int = 0) -> bytes:
    return frame_head(PING, flags, 0, 8) + payload


def goaway(last: int, code: int, text: str) -> bytes:
    body = _GOAWAY.pack(last, code) + text.encode()
    return frame_head(GOAWAY, 0, 0, len(body)) + body


def unpadded(frame: Frame) -> memoryview:
    """Return the payload of DATA or HEADERS without padding and priority.

    Raises ConnectionFault.
    """
    begin, end = 0, len(frame.payload)
    if frame.flags & PADDED:
        begin = 1
        end -= frame.payload[0] if end else 0
    if frame.kind == HEADERS and frame.flags & WITH_PRIORITY:
        begin += 5
    if begin > end:
        raise ConnectionFault(PROTOCOL_ERROR, "more padding than payload")
    return frame.payload[begin:end]


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode headers without a table, so that blocks may be kept."""
    parts: list[bytes] = []
    for name, value in headers:
        parts += (b"\x00", _text(name), _text(value))
    return b"".join(parts)


def _text(text: bytes) -> bytes:
    """Encode a string with its length as a prefixed integer of seven bits."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    length -= 0x7F
    prefix = bytearray(b"\x7f")
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + text


FULL = 10_000  # of a budget: so many pings at once, or a thousand calls that are taken back
_PER_S = 1000.0
CHEAP, DEAR = 1, 10  # a frame that is passed over, and one that makes us work or answer


class Patience:
    """The budget of a connection for frames that cost work and bring nothing: pings, resets, ...

    Each costs a part of it. It grows with time and with the answers that the peer reads, up to a
    limit; not while the peer does not read, so that answers to such frames cannot pile up.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: in seconds."""
        self.reading = True  # the peer reads our answers
        self._clock = clock
        self._left = float(FULL)
        self._at_s = clock()

    def spend(self, cost: float, what: str) -> None:
        """Take note of a frame. Raises ConnectionFault for a flood of them."""
        if self._left < cost:
            self._wait()
        if self._left < cost:
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"a flood of {what}")
        self._left -= cost

    def earn(self, count: float) -> None:
        """Allow a peer more frames, for the answers that it reads."""
        self._left = min(FULL, self._left + count)

    def _wait(self) -> None:
        now_s = self._clock()
        if self.reading:
            self.earn((now_s - self._at_s) * _PER_S)
        self._at_s = now_s
