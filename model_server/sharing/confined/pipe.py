"""Messages over a pipe to a process with limits: a length, then so many bytes."""

from __future__ import annotations

import os

LENGTH = 4  # bytes before each message


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH, "little") + body


def read_frame(descriptor: int) -> bytes | None:
    """Read one message, blocking; None at the end of the stream."""
    head = _read(descriptor, LENGTH)
    return None if head is None else _read(descriptor, int.from_bytes(head, "little"))


def _read(descriptor: int, count: int) -> bytes | None:
    pieces: list[bytes] = []
    while count:
        piece = os.read(descriptor, min(count, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def write_frame(descriptor: int, frame: bytes) -> None:
    """Write one message, blocking. Raises BrokenPipeError if nobody reads."""
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
