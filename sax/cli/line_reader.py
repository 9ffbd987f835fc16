"""Reads what a person types at a prompt: with arrow keys, a history, and messages of many lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from sax.command import say

try:
    import readline
except ImportError:  # a Python that was built without it: lines are read plainly
    readline = None

_FENCE = '"""'
_MOST_LINES = 1000  # of the history
_MOST_LETTERS = 4000  # of a line in it


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "sax" / "chat_history"


class LineReader:
    """The terminal of one conversation; its history is kept for the next."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> LineReader:
        if readline is not None:
            readline.set_auto_history(False)
            with suppress(OSError):  # there is none yet
                readline.read_history_file(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if readline is None:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            readline.set_history_length(_MOST_LINES)
            readline.write_history_file(self._file)
        except OSError as exc:
            say(f"sax: the history is not kept: {exc}")

    def read(self) -> str:
        """Return the next message. Raises EOFError, KeyboardInterrupt.

        After three double quotes it goes on until there are three more.
        """
        line = self._line("> ")
        if not line.startswith(_FENCE):
            return line
        lines = [line.removeprefix(_FENCE)]
        while not lines[-1].rstrip().endswith(_FENCE):
            lines.append(self._line("... "))
        lines[-1] = lines[-1].rstrip().removesuffix(_FENCE)
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        if not sys.stdout.isatty():  # which carries answers only
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
        line = input(prompt)
        if readline is not None and line.strip() and len(line) <= _MOST_LETTERS:
            readline.add_history(line)
        return line
