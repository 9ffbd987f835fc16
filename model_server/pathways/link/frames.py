"""Frames: a small head that says what comes, and a body of raw bytes that is not copied.

4 bytes   length of the head, little-endian
8 bytes   length of the body
head      a msgspec message in MessagePack, which says where the parts of the body end
body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from model_server.pathways.scheduling.merging import Buffer
from sax.errors import InvalidRequest

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
