"""From token ids to text, one whole character at a time.

The `tokenizers` library decodes whole sequences only, and a stream needs the bytes of each token
as it comes. Knows no vocabulary: a spelling gives the bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class IncrementalDecoder(Protocol):
    """Turns a stream of ids into a stream of text; the pieces add up to `decode` of all ids."""

    def push(self, token_id: int) -> str:
        """The whole characters this token completes; "" for a control token."""
        ...

    def flush(self) -> str:
        """What an unfinished character at the end looks like: U+FFFD, or "" if there is none."""
        ...


class Spells(Protocol):
    def spoken_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text: none for a control token."""
        ...


class Utf8Decoder:
    """Collects the bytes of tokens and gives the characters that are complete."""

    def __init__(self, spelling: Spells, *, strip_left: int = 0) -> None:
        """The text loses up to `strip_left` leading spaces."""
        self._spelling = spelling
        self._strip_left = strip_left
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The whole characters this token completes; "" for a control token."""
        return self._stripped(self._utf8.decode(self._spelling.spoken_bytes(token_id)))

    def flush(self) -> str:
        """U+FFFD for an unfinished character; the decoder then starts over."""
        rest = self._stripped(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        return rest

    def _stripped(self, text: str) -> str:
        while self._strip_left and text.startswith(" "):
            self._strip_left -= 1
            text = text[1:]
        if text:
            self._strip_left = 0
        return text


def whole_text(decoder: IncrementalDecoder, ids: Iterable[int]) -> str:
    """What a decoder makes of all ids."""
    text = "".join(decoder.push(token_id) for token_id in ids)
    return text + decoder.flush()
