"""DividedPrinter: prints an answer that may call tools: its text on stdout, reasoning on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable

from sax.chat import AnswerFormat, Message, ToolCall
from sax.command import printable, say
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import (
    AnswerEvent,
    ArgumentsDelta,
    CallBegun,
    ContentDelta,
    ReasoningDelta,
)
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
        self._reasoning: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []  # id, name and pieces of arguments
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
        if self._parts or not self._calls:
            self._write("\n")

    def message(self) -> Message:
        calls = tuple(ToolCall(id, name, "".join(made) or "{}") for id, name, made in self._calls)
        reasoning = "".join(self._reasoning)
        return Message("assistant", "".join(self._parts), tool_calls=calls, reasoning=reasoning)

    def _take(self, events: Iterable[AnswerEvent]) -> None:
        for event in events:
            match event:
                case ContentDelta(text):
                    self._parts.append(text)
                    if self._stream:
                        self._write(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                    sys.stderr.write(printable(text))
                    sys.stderr.flush()
                case CallBegun(_, id, name):
                    self._calls.append((id, name, []))
                case ArgumentsDelta(_, text):
                    self._calls[-1][2].append(text)
                case _:
                    pass


def _format(chunk: TokenChunk) -> AnswerFormat:
    """Return the form of an answer that begins with a chunk, and say if it is sax's own."""
    format = chunk.answer_format or AnswerFormat()
    if format.generic:
        say(_GENERIC)
    return format
