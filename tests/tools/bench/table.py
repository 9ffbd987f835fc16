"""One benchmark's figures as a Markdown table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from tests.tools.report import table


@dataclass
class Table:
    """A heading, how it was measured, columns and rows of text."""

    title: str
    how: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row, and show it on stderr: a table takes minutes."""
        self.rows.append(tuple(str(cell) for cell in cells))
        print(" | ".join(self.rows[-1]), file=sys.stderr, flush=True)

    def markdown(self) -> str:
        return f"## {self.title}\n\n{self.how}\n\n{table(self.columns, self.rows)}\n"
