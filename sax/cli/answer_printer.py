"""Prints answers on a terminal as Markdown."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text
from rich.theme import Theme

from sax.command import printable

# Without rich's black ground, which a light terminal shows.
_THEME = Theme({"markdown.code": "cyan", "markdown.code_block": "cyan"})


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
        # A line that is being written may yet be something else: `* **` is a rule, then an item.
        whole = self._rest[: self._rest.rindex("\n") + 1]
        tops = [each.map for each in Markdown(whole).parsed if each.level == 0 and each.map]
        line = tops[-1][0] if len(tops) > 1 else 0
        return sum(map(len, whole.splitlines(keepends=True)[:line]))

    def _print(self, text: str) -> None:
        """Print blocks for good, with an empty line before all but the first."""
        if not text.strip():
            return
        if self._printed:
            self._console.print()
        self._printed = True
        # A link of OSC 8 would hide where it leads.
        self._console.print(Markdown(text, hyperlinks=False))
