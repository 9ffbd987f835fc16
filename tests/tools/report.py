"""What tools print at their end: tables in Markdown, and the last lines of logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def row(cells: Iterable[object]) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def table(heads: Sequence[str], rows: Iterable[Iterable[object]] = ()) -> str:
    """A table; without rows its heading."""
    return "\n".join(map(row, (heads, ["---"] * len(heads), *rows)))


def tails(folder: Path, lines: int) -> str:
    """The last lines of every log of a folder, under its name."""
    logs = sorted(folder.glob("*.log"))
    ends = ("\n".join(log.read_text(errors="replace").splitlines()[-lines:]) for log in logs)
    return "\n".join(f"--- {log.name}\n{end}" for log, end in zip(logs, ends, strict=True))
