"""One benchmark's figures as a Markdown table."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Table:
    """A heading, how it was measured, columns and rows of text."""

    title: str
    how: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        self.rows.append(tuple(str(cell) for cell in cells))

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.how, ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + " --- |" * len(self.columns))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"
