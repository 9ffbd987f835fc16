"""An answer of `lm.generate -stream`: its samples while they grow, and their scores.

The score of the last message is the whole sample's, as Saxml's protocol says: scores are not added
up.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sax.cli.saxutil.ascii_table import as_number
from sax.command import printable
from sax.saxml.language_model import StreamItem

_CLEAR = "\033[H\033[2J"


class StreamedAnswer:
    """Takes the messages of GenerateStream. On a terminal the texts are drawn anew with each; else
    printed once, whole."""

    def __init__(self, *, redraws: bool) -> None:
        self._redraws = redraws
        self.texts: list[str] = []
        self.last: list[list[float]] = []

    def take(self, last: bool, items: Sequence[StreamItem]) -> None:
        for at, (text, prefix_len, scores) in enumerate(items):
            self._grow(at)
            self.texts[at] = self.texts[at][:prefix_len] + text
            self.last[at] = list(scores)
        if last or self._redraws:
            self._print()

    def scores(self) -> str:
        """Return the line below the texts, or one for each kind of score."""
        count = max(map(len, self.last), default=0)
        if count <= 1:
            return f"Scores: {_column(self.last, 0)}"
        return "\n".join(f"Total Scores[{at}]: {_column(self.last, at)}" for at in range(count))

    def _grow(self, at: int) -> None:
        while len(self.texts) <= at:
            self.texts.append("")
            self.last.append([])

    def _print(self) -> None:
        clear = _CLEAR if self._redraws else ""
        sys.stdout.write(clear + "".join(f"{printable(text)}\n\n" for text in self.texts))
        sys.stdout.flush()


def _column(rows: Sequence[Sequence[float]], at: int) -> str:
    return ", ".join(as_number(row[at]) for row in rows if at < len(row))
