"""DividedPrinter: prints an answer that may call tools: its text on stdout, reasoning on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable

from sax.chat import AnswerFormat, Message
from sax.command import printable, say
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import AnswerEvent, CollectedAnswer, ContentDelta, ReasoningDelta
from sax.types import TokenChunk

_GENERIC = "this model's template knows no tools: they are told in sax's own form"


class DividedPrinter:
    def __init__(
        self,
        tools: Collection[str],
        parts: list[str],
        write: Callable[[str], None],
        *,
        stream: bool,
    ) -> None:
        """parts: the pieces of the text are added. write: shows a piece."""
        self._tools = tools
        self._write = write
        self._parts = parts
        self._stream = stream
        self._said = CollectedAnswer()
        self._parser: AnswerParser | None = None

    def print(self, chunks: Iterable[TokenChunk]) -> None:
        for chunk in chunks:
            if self._parser is None:
                self._parser = AnswerParser(_format(chunk), self._tools)
            self._take(self._parser.push(chunk.text))
        if self._parser is not None:
            self._take(self._parser.finish())
        if not self._stream:
            self._write("".join(self._parts))
        if self._parts or not self._said.calls:
            self._write("\n")

    def message(self) -> Message:
        return self._said.message()

    def _take(self, events: list[AnswerEvent]) -> None:
        self._said.add(events)
        for event in events:
            match event:
                case ContentDelta(text):
                    self._parts.append(text)
                    if self._stream:
                        self._write(text)
                case ReasoningDelta(text):
                    sys.stderr.write(printable(text))
                    sys.stderr.flush()
                case _:
                    pass


def _format(chunk: TokenChunk) -> AnswerFormat:
    """Return the form of an answer that begins with a chunk, and say if it is sax's own."""
    format = chunk.answer_format or AnswerFormat()
    if format.generic:
        say(_GENERIC)
    return format
