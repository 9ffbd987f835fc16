"""Messages between a server and the process that encodes with tokenizers of unknown patterns."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_ANSWER = 1 << 30  # bytes


class TextAsk(msgspec.Struct, frozen=True, array_like=True):
    """Encode one text."""

    key: bytes  # names the tokenizer
    text: str
    tokenizer: str = ""  # its JSON, for a process that does not know it


class TextIds(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["ids", "unknown", "ended"]
    ids: list[int] = []
    offsets: list[tuple[int, int]] = []  # characters
    text: str = ""  # how it ended the process
