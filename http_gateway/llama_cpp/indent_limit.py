"""IndentLimit: ends a text before the first line that is indented less than asked for."""

from __future__ import annotations


class IndentLimit:
    """The first line is that of the cursor, and has no limit."""

    def __init__(self, least: int) -> None:
        """least: spaces and tabs that a line begins with."""
        self._least = least
        self._held = ""  # a line's end, and the blanks after it
        self.over = least == 0  # nothing more is looked for
        self.ended = False  # the text is at its end

    def push(self, text: str, *, last: bool = False) -> str:
        """Return what belongs to the text so far. last: no more comes."""
        if self.ended:
            return ""
        if self.over:
            return text
        text, self._held = self._held + text, ""
        shown, *lines = text.split("\n")
        for number, line in enumerate(lines):
            indent = len(line) - len(line.lstrip(" \t"))
            open_line = number == len(lines) - 1 and indent == len(line)
            if open_line and not last:
                self._held = f"\n{line}"
                return shown
            if indent < self._least and not open_line:
                self.ended = True
                return shown
            shown += f"\n{line}"
        return shown
