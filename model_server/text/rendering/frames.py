"""Messages between a server and the process that renders its chat templates."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from sax.chat import ChatOptions, Message

LENGTH = 4  # bytes before each message
MAX_ANSWER = 1 << 27  # bytes


class TemplateParts(msgspec.Struct, frozen=True, array_like=True):
    """A template with all that is the same for every chat."""

    source: str
    bos_token: str
    eos_token: str
    control_tokens: tuple[str, ...]

    @property
    def size(self) -> int:
        """Characters, about."""
        return len(self.source) + sum(map(len, self.control_tokens))


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Render one chat."""

    key: bytes  # names the template
    chat: tuple[Message, ...] | None  # None: only compile
    options: ChatOptions = ChatOptions()
    parts: TemplateParts | None = None  # for a process that does not know the template


class Answer(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["text", "unknown", "refused", "runaway", "broken"]
    text: str = ""  # the chat, or what the template does, as the end of a sentence


def framed(message: Ask | Answer) -> bytes:
    """Raises UnicodeEncodeError for text with lone surrogates."""
    body = msgspec.msgpack.encode(message)
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
