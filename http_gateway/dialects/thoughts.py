"""Divides a text at <think> and </think> into reasoning and the rest."""

from __future__ import annotations

from collections.abc import Callable

from http_gateway.dialects.text_reader import BLANKS, Reading, TextReader

_OPEN, _CLOSE = "<think>", "</think>"


class _Trimmed:
    """Writes a text without the white space around it."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._held = ""
        self._begun = False

    def __call__(self, text: str) -> None:
        if not self._begun:
            text = text.lstrip(BLANKS)
            self._begun = bool(text)
        whole = self._held + text
        shown = whole.rstrip(BLANKS)
        self._held = whole[len(shown) :]
        self._write(shown)


def read_thoughts(
    reader: TextReader, *, is_open: bool, rest: Callable[[TextReader], Reading]
) -> Reading:
    """Read reasoning if the text begins with it, then the rest as `rest` does.

    is_open: the text begins inside the reasoning.
    """
    start = reader.at
    yield from reader.blank()
    if is_open or (yield from reader.literal(_OPEN)):
        reader.forget()
        yield from reader.until((_CLOSE,), _Trimmed(reader.think))
        yield from reader.blank()
        reader.forget()
    else:
        reader.at = start
    yield from rest(reader)
