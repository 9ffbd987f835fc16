"""Printers of answers: Markdown on a terminal, and answers that may call tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text
from rich.theme import Theme

from sax.chat import AnswerFormat, Message
from sax.command import printable, say
from sax.dialects.answer_parser import AnswerParser
from sax.dialects.events import AnswerEvent, CollectedAnswer, ContentDelta, ReasoningDelta
from sax.types import TokenChunk

# Without rich's black ground, which a light terminal shows.
_THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "cyan"})
_GENERIC = "this model's template knows no tools: they are told in sax's own form"


class MarkdownText:
    """The text of an answer on a terminal: blocks that are whole as Markdown, the rest as it comes.

    Colours are rich's, which heeds NO_COLOR and the terminal's size.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, theme=_THEME)
        # Rich would hold lines of stderr back until they end, and draw between their pieces.
        self._live = Live(
            console=self._console,
            transient=True,
            refresh_per_second=12,
            vertical_overflow="crop",
            redirect_stderr=False,
        )
        self._reasoning = ""  # that is not printed for good
        self._rest = ""  # likewise, of the answer
        self._printed = False

    def __enter__(self) -> MarkdownText:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        self._end_reasoning()
        self._print(self._rest)

    def reason(self, text: str) -> None:
        """Show reasoning dimly, above the answer; where stderr is no terminal, it goes there."""
        if not sys.stderr.isatty():
            sys.stderr.write(printable(text))
            sys.stderr.flush()
            return
        self._reasoning += printable(text)
        done, newline, rest = self._reasoning.rpartition("\n")
        if newline:
            self._console.print(Text(done, "dim"))
            self._reasoning = rest
        self._live.update(Text(self._reasoning, "dim"))

    def write(self, text: str) -> None:
        self._end_reasoning()
        self._rest += printable(text)
        if "\n" in text:
            begun = self._start_of_last_block()
            self._print(self._rest[:begun])
            self._rest = self._rest[begun:]
        lines = self._rest.splitlines()[-max(1, self._console.height - 3) :]
        self._live.update(Text("\n".join(lines)))

    def _end_reasoning(self) -> None:
        if self._reasoning.strip():
            self._console.print(Text(self._reasoning, "dim"))
        self._printed = self._printed or bool(self._reasoning)
        self._reasoning = ""

    def end(self) -> None:
        """Blocks end their lines themselves."""

    def _start_of_last_block(self) -> int:
        tops = [each.map for each in Markdown(self._rest).parsed if each.level == 0 and each.map]
        line = tops[-1][0] if len(tops) > 1 else 0
        return sum(map(len, self._rest.splitlines(keepends=True)[:line]))

    def _print(self, text: str) -> None:
        """Print blocks for good, with an empty line before all but the first."""
        if not text.strip():
            return
        if self._printed:
            self._console.print()
        self._printed = True
        # A link of OSC 8 would hide where it leads.
        self._console.print(Markdown(text, hyperlinks=False))


class DividedPrinter:
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
    """Return the form of an answer that begins with a chunk, and say if it is sax's own."""
    format = chunk.answer_format or AnswerFormat()
    if format.generic:
        say(_GENERIC)
    return format
