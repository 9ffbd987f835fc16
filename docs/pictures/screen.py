"""A terminal's screen, as far as `sax` uses one: colours, and lines that are drawn again.

rich's live displays return to the first column, erase whole lines and move up; nothing else moves
the cursor, so a screen is a list of lines and the row that is written next.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

_PIECES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")
_UNFINISHED = re.compile(r"\x1b[^A-Za-z]*$")


class Screen:
    """Lines of a terminal after all bytes so far; colours stay in them as ANSI codes."""

    def __init__(self) -> None:
        self._lines = [""]
        self._row = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # the start of a sequence whose end has not arrived

    def write(self, data: bytes) -> None:
        text = self._rest + self._decoder.decode(data)
        cut = match.start() if (match := _UNFINISHED.search(text)) else len(text)
        self._rest = text[cut:]
        for piece in _PIECES.finditer(text[:cut]):
            self._apply(piece)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n")

    def _apply(self, match: re.Match[str]) -> None:
        argument, command, control, printed = match.groups()
        if printed:
            self._lines[self._row] += printed
        elif control == "\n":
            self._move(1)
        elif command == "m":
            self._lines[self._row] += match[0]
        elif command == "A":
            self._move(-int(argument or 1))
        elif command == "K":
            self._lines[self._row] = ""

    def _move(self, rows: int) -> None:
        self._row = max(self._row + rows, 0)
        while len(self._lines) <= self._row:
            self._lines.append("")
