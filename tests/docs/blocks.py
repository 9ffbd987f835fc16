"""The pages that users read, and their blocks of code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.house import ROOT

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (
        *(ROOT / name for name in _AT_THE_TOP),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    )
}


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    section: str

    @property
    def only_make(self) -> bool:
        return all(line.startswith("make ") for line in self.text.strip().splitlines())


def blocks(page: str) -> list[Block]:
    return [
        Block(match[1], match[2], section.partition("\n")[0])
        for section in re.split(r"^## ", PAGES[page], flags=re.MULTILINE)
        for match in _FENCE.finditer(section)
    ]


ISLANDS = blocks("docs/tutorial/islands.md")
README = blocks("README.md") + blocks("docs/tutorial/first_cell.md")
CONTINUED = blocks("docs/tutorial/command_line.md") + blocks("docs/how_to/benchmarking.md")
SEVERAL_HOSTS = [
    block for block in blocks("docs/how_to/operations.md") if block.section == "More than one host"
]
PLANNING = blocks("docs/how_to/planning.md")
# tests/hosts/test_two_machines.py runs those on two machines.
EVENING = [
    block for block in blocks("docs/tutorial/one_evening.md") if block.section != "On two machines"
]
COMING = blocks("docs/tutorial/coming_from.md")
