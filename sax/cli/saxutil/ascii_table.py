"""Tables as saxutil draws them: boxes of +, - and |, or comma-separated lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sax.command import printable

_NUMBER = re.compile(r"-?[0-9.]+(E[+-][0-9]+)?")


def as_number(value: float) -> str:
    """Format a score: at most 8 significant digits."""
    return f"{value:.8G}"


def drawn(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a table; headings are centred capitals, numbers stand on the right.

    A line end in a cell goes on in the next line of its box.
    """
    shown = [[printable(cell).expandtabs().splitlines() or [""] for cell in row] for row in rows]
    titles = [heading.upper() for heading in headings]
    widths = [
        max([len(title), *(len(line) for row in shown for line in row[at])])
        for at, title in enumerate(titles)
    ]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    centred = [title.center(width) for title, width in zip(titles, widths, strict=True)]
    lines = [rule, _line(centred), rule]
    for row in shown:
        lines += _box(row, widths)
    return "\n".join([*lines, rule] if shown else lines)


def comma_separated(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write the rows of `-csv`; the headings are a comment line. Nothing is quoted, as in Saxml."""
    return "\n".join([f"# {','.join(headings)}", *(printable(",".join(row)) for row in rows)])


def _box(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in row)
    return [
        _line([_padded(lines, at, width) for lines, width in zip(row, widths, strict=True)])
        for at in range(height)
    ]


def _padded(lines: Sequence[str], at: int, width: int) -> str:
    text = lines[at] if at < len(lines) else ""
    is_number = len(lines) == 1 and _NUMBER.fullmatch(text)
    return text.rjust(width) if is_number else text.ljust(width)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
