"""Counts the lines of the files in the walks of docs/explanation/architecture.md.

python -m tests.docs.walks   # writes the numbers into the page (make docs)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests import house

_SECTION = re.compile(r"^## The walk of a (\w+)\n(.*?)(?=^## )", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| `([\w/]+\.\w+)` \| (\d+) \|", re.MULTILINE)
_TOTAL = re.compile(r"^\d+ files, [\d,]+ lines:$", re.MULTILINE)


class Walk(NamedTuple):
    """A table of the page: its files, each with the lines that the page says it has."""

    name: str
    listed: dict[str, int]

    @property
    def lines(self) -> int:
        """The lines that its files have."""
        return sum(map(lines_of, self.listed))


def lines_of(file: str) -> int:
    return len((house.ROOT / file).read_text().splitlines())


def walks(page: str) -> Iterator[Walk]:
    for name, text in _SECTION.findall(page):
        rows = _ROW.findall(text)
        assert len(rows) == len({file for file, _ in rows}), f"{name}: a file is there twice"
        yield Walk(name, {file: int(lines) for file, lines in rows})


def written(page: str) -> str:
    """Return the page with today's numbers."""
    return _SECTION.sub(lambda found: _counted(found.group()), page)


def _counted(section: str) -> str:
    files = [file for file, _ in _ROW.findall(section)]
    total = f"{len(files)} files, {sum(map(lines_of, files)):,} lines:"
    section = _TOTAL.sub(total, section, count=1)
    return _ROW.sub(lambda row: f"| `{row[1]}` | {lines_of(row[1])} |", section)


if __name__ == "__main__":
    house.PAGE.write_text(written(house.PAGE.read_text()))
