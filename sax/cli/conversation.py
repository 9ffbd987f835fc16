"""A conversation with a model: what was said so far, and how the next answer is asked for."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace as replace_field

from sax.chat import AnswerFormat, ReasoningParser, Tool, ToolCall, ToolChoice
from sax.cli.image_files import with_images
from sax.command import CommandResult, printable, say
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import AnswerEvent, CollectedAnswer, ContentDelta, ReasoningDelta
from sax.errors import SaxError
from sax.types import ChatOptions, GenerateRequest, Message, SamplingParams, TokenChunk

if TYPE_CHECKING:
    from sax.client import Client

try:
    import termios
except ImportError:  # Windows
    termios = None

MOST_ROUNDS = 16  # of one answer, with calls between them
_GENERIC = "this model's template knows no tools: they are told in sax's own form"


class CallTools(Protocol):
    """Tools that an answer may call."""

    tools: tuple[Tool, ...]

    def results(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Make calls, and return what they gave."""
        ...


@dataclass(slots=True)
class Conversation:
    """The turns of one conversation. Settings may change between them."""

    client: Client
    model_id: str
    sampling: SamplingParams
    system: str | None = None
    priority: int = 0
    timeout_s: float | None = None
    stream: bool = True
    turns: list[Message] = field(default_factory=list[Message])
    files: list[Path] = field(default_factory=list[Path])  # images of the next message
    sounds: list[Path] = field(default_factory=list[Path])  # likewise
    videos: list[Path] = field(default_factory=list[Path])  # likewise
    heard: bool = False  # sound tracks of videos are heard, too
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    tools: CallTools | None = None
    tool_choice: str = ToolChoice.AUTO  # of a message's first answer: a choice or a tool's name
    unseen: bool = False  # answers are not shown while they come
    _last: TokenChunk = field(default_factory=lambda: TokenChunk(""))

    def results(self, texts: Iterable[str]) -> Iterator[CommandResult]:
        """Ask one message after another. Raises SaxError, KeyboardInterrupt."""
        for text in texts:
            yield CommandResult(partial(self._value, text), partial(self.ask, text))

    def _value(self, text: str) -> dict[str, object]:
        self.unseen = True
        self.ask(text)
        answer, last = self.turns[-1], self._last
        return {
            "text": "".join(answer.texts),
            **({"reasoning": answer.reasoning} if answer.reasoning else {}),
            "finish_reason": last.finish_reason,
            "prompt_tokens": last.prompt_tokens,
            "completion_tokens": last.completion_tokens,
        }

    def ask(self, text: str) -> None:
        """Print the answer to a message and remember both. Raises SaxError, KeyboardInterrupt."""
        self._answer([self._turn(text)], [])

    def answer_or_tell(self, text: str) -> None:
        """Print the answer, as far as it comes: an error or Ctrl-C ends it, and no more.

        What was answered until Ctrl-C is remembered.
        """
        said, parts = [Message("user", text)], list[str]()
        try:
            said = [self._turn(text)]
            self._answer(said, parts)
        except SaxError as error:
            say(f"sax: {error.text}")
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            sys.stdout.flush()
            if parts and self.stream:
                self.turns += [*said, Message("assistant", "".join(parts))]

    def _turn(self, text: str) -> Message:
        """Return the next message. Raises InvalidRequest for a file that cannot be read."""
        files, self.files = self.files, []
        sounds, self.sounds = self.sounds, []
        videos, self.videos = self.videos, []
        return Message("user", with_images(text, files, sounds, videos, heard=self.heard))

    def _answer(self, said: list[Message], parts: list[str]) -> None:
        """said: the messages of this turn; calls and their results are added. parts: of the text
        that is being written."""
        for number in range(MOST_ROUNDS):
            message = self._round(said, parts, self._choice(number))
            said.append(message)
            parts.clear()
            if self.tools is None or not message.tool_calls:
                break
            said += self.tools.results(message.tool_calls)
        self.turns += said

    def _choice(self, number: int) -> ChatOptions:
        """Return the choice of tools in a round of an answer: results must not force more calls."""
        if number == MOST_ROUNDS - 1:
            return ChatOptions(tool_choice=ToolChoice.NONE)
        wanted = ToolChoice.AUTO if number else self.tool_choice
        if wanted in (ToolChoice.AUTO, ToolChoice.NONE, ToolChoice.REQUIRED):
            return ChatOptions(tool_choice=wanted)
        return ChatOptions(tool_choice=ToolChoice.FUNCTION, tool_name=wanted)

    def _round(self, said: list[Message], parts: list[str], choice: ChatOptions) -> Message:
        """Print what the model says next. choice: of tools; their list is added."""
        system = [] if self.system is None else [Message("system", self.system)]
        request = GenerateRequest(
            model_id=self.model_id,
            prompt=(*system, *self.turns, *said),
            sampling=self.sampling,
            priority=self.priority,
            timeout_s=self.timeout_s,
            session=self.session,
        )
        tools = () if self.tools is None else self.tools.tools
        chat = replace(choice, tools=tools, divided=True)
        with unseen_keys(), self._shown() as text:
            answer = DividedPrinter(
                chat.callable_tools, parts, text.write, text.reason, stream=self.stream
            )
            answer.print(self._kept(self.client.generate(replace(request, chat=chat))))
            if not answer.is_call_alone:
                text.end()
        _tell_cut(answer.finish_reason)
        return answer.message()

    def _shown(self) -> AnswerText:
        return UnseenText() if self.unseen else answer_text()

    def _kept(self, chunks: Iterable[TokenChunk]) -> Iterator[TokenChunk]:
        for self._last in chunks:
            yield self._last


def print_answer(chunks: Iterable[TokenChunk], *, stream: bool) -> None:
    """Print a completion and a newline on stdout, and say if it was cut."""
    texts, finish_reason = list[str](), None
    with unseen_keys(), PlainText() as shown:
        for chunk in chunks:
            texts.append(chunk.text)
            finish_reason = chunk.finish_reason
            if stream:
                shown.write(chunk.text)
        if not stream:
            shown.write("".join(texts))
        shown.end()
    _tell_cut(finish_reason)


def _tell_cut(finish_reason: str | None) -> None:
    if finish_reason == "length":
        say("sax: the answer was cut at max_tokens, or at the end of the model's context")


class AnswerText(Protocol):
    """Shows the text of one answer; a context manager."""

    def __enter__(self) -> AnswerText: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def write(self, text: str) -> None: ...

    def reason(self, text: str) -> None:
        """Show a piece of the reasoning before the answer, which is no part of it."""
        ...

    def end(self) -> None:
        """End the last line."""
        ...


def answer_text() -> AnswerText:
    """Return Markdown for a terminal that can move its cursor, plain text for all else."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainText()
    from sax.cli.answer_printer import MarkdownText  # not felt at the start of others

    return MarkdownText()


class PlainText:
    def __enter__(self) -> PlainText:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.stdout.flush()

    def write(self, text: str) -> None:
        # Models may emit control characters: escape them on a terminal, pass them on in a pipe.
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()

    def reason(self, text: str) -> None:
        sys.stderr.write(printable(text))
        sys.stderr.flush()

    def end(self) -> None:
        sys.stdout.write("\n")


class UnseenText(PlainText):
    """Shows nothing: the answer is printed once it is whole."""

    def write(self, text: str) -> None: ...

    def reason(self, text: str) -> None: ...

    def end(self) -> None: ...


class DividedPrinter:
    """Shows an answer in its parts as it comes: reasoning, text, and calls of tools."""

    def __init__(
        self,
        tools: Collection[str],
        parts: list[str],
        write: Callable[[str], None],
        reason: Callable[[str], None],
        *,
        stream: bool,
    ) -> None:
        """parts: the pieces of the text are added. write, reason: show a piece of the answer, and
        of the reasoning before it."""
        self._tools = tools
        self._write = write
        self._reason = reason
        self._parts = parts
        self._stream = stream
        self._said = CollectedAnswer()
        self._parser: AnswerParser | None = None
        self.finish_reason: str | None = None

    def print(self, chunks: Iterable[TokenChunk]) -> None:
        for chunk in chunks:
            if self._parser is None:
                self._parser = AnswerParser(_format(chunk), self._tools)
            self._take(self._parser.push(chunk.text))
            self.finish_reason = chunk.finish_reason
        if self._parser is not None:
            self._take(self._parser.finish())
        if not self._stream:
            self._write("".join(self._parts))

    @property
    def is_call_alone(self) -> bool:
        """True for calls without a text."""
        return bool(self._said.calls) and not self._parts

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
                    self._reason(text)
                case _:
                    pass


def _format(chunk: TokenChunk) -> AnswerFormat:
    """Return the form of an answer that begins with a chunk, and say if it is sax's own.

    A model whose template knows no reasoning may have learnt to write `<think>` all the same.
    """
    format = chunk.answer_format or AnswerFormat()
    if format.generic:
        say(_GENERIC)
    known = format.reasoning != ReasoningParser.NONE
    return format if known else replace_field(format, reasoning=ReasoningParser.THINK)


@contextmanager
def unseen_keys() -> Generator[None]:
    """Keep keys that are pressed meanwhile from the screen: the next line begins with them."""
    if termios is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
