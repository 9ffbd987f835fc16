"""AnswerParser: divides the text of one answer into reasoning, content and calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection
from functools import partial

from http_gateway.dialects.call_object import read_hermes, read_llama3
from http_gateway.dialects.deepseek import read_deepseek
from http_gateway.dialects.events import AnswerEvent, ArgumentsDelta, CallBegun, CallEnded
from http_gateway.dialects.gemma import read_gemma
from http_gateway.dialects.harmony import read_harmony
from http_gateway.dialects.mistral import read_mistral
from http_gateway.dialects.text_reader import Reading, TextReader
from http_gateway.dialects.thoughts import read_thoughts
from sax.chat import AnswerFormat, ReasoningParser, ToolParser

_ALPHABET = string.ascii_letters + string.digits
_READERS: dict[str, Callable[[TextReader], Reading]] = {
    ToolParser.HERMES: read_hermes,
    ToolParser.LLAMA3: read_llama3,
    ToolParser.MISTRAL: read_mistral,
    ToolParser.GEMMA: read_gemma,
    ToolParser.DEEPSEEK: read_deepseek,
    ToolParser.GPT_OSS: read_harmony,
}


def new_call_id(format: AnswerFormat) -> str:
    """Return an id for a call. Mistral's templates take nine letters and digits only."""
    if format.tools == ToolParser.MISTRAL:
        return "".join(secrets.choice(_ALPHABET) for _ in range(9))
    return f"call_{secrets.token_hex(12)}"


class AnswerParser:
    """Reads text in pieces of any size; where they are cut does not change the events, joined."""

    def __init__(
        self,
        format: AnswerFormat,
        tools: Collection[str],
        *,
        parallel: bool = True,
        new_id: Callable[[], str] | None = None,
    ) -> None:
        """tools: names that a call may have. parallel: False drops all calls but the first."""
        self._reader = TextReader(frozenset(tools), new_id or partial(new_call_id, format))
        self._parallel = parallel
        self._reading = _reading(format, self._reader)
        self._over = False

    @property
    def calls(self) -> int:
        """Calls so far, those begun and dropped ones included."""
        return self._reader.calls

    def push(self, text: str) -> list[AnswerEvent]:
        self._reader.text += text
        self._go_on()
        return self._taken()

    def finish(self) -> list[AnswerEvent]:
        """Return what was held back, once no more text comes."""
        self._reader.ended = True
        self._go_on()
        self._reader.flush()
        return self._taken()

    def _go_on(self) -> None:
        if not self._over:
            self._over = next(self._reading, self) is self

    def _taken(self) -> list[AnswerEvent]:
        events = self._reader.taken()
        return events if self._parallel else [event for event in events if _is_first(event)]


def divides(format: AnswerFormat | None) -> bool:
    """True if a parser has anything to do for answers of this format."""
    if format is None:
        return False
    return format.tools in _READERS or format.reasoning in (
        ReasoningParser.THINK,
        ReasoningParser.GPT_OSS,
    )


def _is_first(event: AnswerEvent) -> bool:
    return not isinstance(event, CallBegun | ArgumentsDelta | CallEnded) or event.index == 0


def _reading(format: AnswerFormat, reader: TextReader) -> Reading:
    if format.reasoning == ReasoningParser.GPT_OSS:
        return read_harmony(reader)
    read = _READERS.get(format.tools, _read_plain)
    if format.reasoning == ReasoningParser.THINK:
        return read_thoughts(reader, is_open=format.reasoning_open, rest=read)
    return read(reader)


def _read_plain(reader: TextReader) -> Reading:
    yield from reader.until(())
