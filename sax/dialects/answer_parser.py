"""AnswerParser: divides the text of one answer into reasoning, content and calls of tools."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Collection, Generator
from functools import partial

from sax.call_form import NAMED_FORMS, CallForm, IdForm
from sax.chat import AnswerFormat, ReasoningParser, ToolParser
from sax.dialects.call_reader import read_calls, with_variants
from sax.dialects.events import AnswerEvent, ArgumentsDelta, CallBegun, CallEnded
from sax.dialects.text_reader import BLANKS, Reading, TextReader

_OPEN, _CLOSE = "<think>", "</think>"

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")


def read_harmony(reader: TextReader) -> Reading:
    # The prompt ends with the start of a message, so that the text begins with its header.
    """gpt-oss: messages in channels. Analysis is reasoning, commentary to a function is a call,
    and the rest is content.
    """
    yield from reader.blank()
    known = yield from reader.literal(_CHANNEL, "to=", _START)
    begun = reader.text[: reader.at]
    reader.forget()
    if not known:
        reader.say(begun)
        begun = yield from reader.until((_CHANNEL, _START))
    while begun:
        header: list[str] = [begun]
        found = yield from reader.until((_MESSAGE,), header.append)
        if not found:
            reader.say("".join(header))
            return
        begun = yield from _body(reader, "".join(header))


def _body(reader: TextReader, header: str) -> Generator[None, None, str]:
    """Read a message, and return how the header of the next one begins."""
    recipient = _RECIPIENT.search(header)
    call = recipient is not None and recipient[1] in reader.tools
    if call and recipient is not None:
        reader.begin_call(recipient[1])
        write = reader.add_arguments
    else:
        write = reader.think if f"{_CHANNEL}analysis" in header else reader.say
    end = yield from reader.until(_ENDS, write)
    if call:
        reader.end_call()
    if end in (_START, _CHANNEL, ""):
        return end
    # A message that ended; the next one begins with its start, or the answer is over.
    return (yield from reader.until((_START, _CHANNEL)))


_ALPHABET = string.ascii_letters + string.digits


def new_call_id(form: CallForm | None) -> str:
    """Return an id for a call, as the model's template takes ids."""
    if form is not None and form.ids == IdForm.SHORT:
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
        first = next(iter(forms_of(format)), None)
        self._reader = TextReader(frozenset(tools), new_id or partial(new_call_id, first))
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
    return format.tools != ToolParser.NONE or format.reasoning in (
        ReasoningParser.THINK,
        ReasoningParser.GPT_OSS,
    )


def _is_first(event: AnswerEvent) -> bool:
    return not isinstance(event, CallBegun | ArgumentsDelta | CallEnded) or event.index == 0


def forms_of(format: AnswerFormat) -> tuple[CallForm, ...]:
    """Return the forms that calls in an answer may have."""
    if format.calls is not None:
        return with_variants(format.calls)
    named = NAMED_FORMS.get(format.tools, ())
    return tuple(variant for form in named for variant in with_variants(form))


def _reading(format: AnswerFormat, reader: TextReader) -> Reading:
    if format.reasoning == ReasoningParser.GPT_OSS:
        return read_harmony(reader)
    read = partial(read_calls, forms=forms_of(format), kinds=format.kinds)
    if format.reasoning == ReasoningParser.THINK:
        marks = format.thoughts or (_OPEN, _CLOSE)
        return read_thoughts(reader, marks, is_open=format.reasoning_open, rest=read)
    return read(reader)


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
    reader: TextReader,
    marks: tuple[str, str],
    *,
    is_open: bool,
    rest: Callable[[TextReader], Reading],
) -> Reading:
    """Read reasoning if the text begins with it, then the rest as `rest` does.

    marks: around the reasoning. is_open: the text begins inside the reasoning.
    """
    begin, end = marks
    close, _, behind = end.partition(">")
    close = f"{close}>" if behind or end.endswith(">") else end
    start = reader.at
    yield from reader.blank()
    if is_open or (yield from reader.literal(begin)):
        reader.forget()
        yield from reader.until((close,), _Trimmed(reader.think))
        yield from reader.spaced(behind)
        yield from reader.blank()
        reader.forget()
    else:
        reader.at = start
    yield from rest(reader)
