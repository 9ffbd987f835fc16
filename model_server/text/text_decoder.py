"""Incremental detokenizer: token ids to text, one whole character at a time.

Hand-written because `DecodeStream` of the `tokenizers` library (0.23) decodes everything it holds
back again on every token: 2,000 stray bytes, which a logit bias can force, take 1.5 s there and
2 ms here. It also drops an unfinished character at the end, and does not expose a token's bytes,
which logprobs need anyway.

A continuation is decoded in its context: what a token says can depend on the text before it (a
SentencePiece text loses its first space, a continuation does not).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

_LONGEST_BEGUN = 3  # bytes of a character that is not yet whole


class IncrementalDecoder(Protocol):
    """Turns a stream of ids into a stream of text; the pieces add up to `decode` of all ids."""

    def push(self, token_id: int) -> str:
        """Return the whole characters this token completes; "" for a control token."""
        ...

    def flush(self) -> str:
        """Return U+FFFD for an unfinished character at the end, or "" if there is none."""
        ...


class Utf8Decoder:
    """Decodes token bytes, holding back incomplete characters."""

    def __init__(self, bytes_of: Callable[[int], bytes], *, strip_left: int = 0) -> None:
        """Decode what `bytes_of` says a token adds to the text, b"" for a control token.

        Up to `strip_left` leading spaces are removed from the text.
        """
        self._bytes_of = bytes_of
        self._strip_left = strip_left
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def follow(self, ids: Sequence[int]) -> None:
        """Continue the text of these ids, of which only the first and last few are read.

        A character that they leave unfinished belongs to what comes next.
        """
        before = iter(ids)
        while self._strip_left and (token_id := next(before, None)) is not None:
            self.push(token_id)
        self._utf8.reset()
        self._utf8.decode(self._end_of(ids))

    def push(self, token_id: int) -> str:
        return self._stripped(self._utf8.decode(self._bytes_of(token_id)))

    def flush(self) -> str:
        """Return U+FFFD for an unfinished character, and reset."""
        rest = self._stripped(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        return rest

    def _end_of(self, ids: Sequence[int]) -> bytes:
        end = b""
        for token_id in reversed(ids):
            end = self._bytes_of(token_id) + end
            if len(end) >= _LONGEST_BEGUN:
                break
        return end[-_LONGEST_BEGUN:]

    def _stripped(self, text: str) -> str:
        while self._strip_left and text.startswith(" "):
            self._strip_left -= 1
            text = text[1:]
        if text:
            self._strip_left = 0
        return text


def whole_text(decoder: IncrementalDecoder, ids: Iterable[int]) -> str:
    text = "".join(decoder.push(token_id) for token_id in ids)
    return text + decoder.flush()
