"""The stress table: all rows, and the Markdown that docs/explanation/reliability.md keeps."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path

import tests.tools.stress.rows
from tests.demo_model import ROOT
from tests.tools import report
from tests.tools.stress.row import Outcome, Row

PAGE = ROOT / "docs" / "explanation" / "reliability.md"
BEGIN, END = "<!-- stress: begin -->\n", "<!-- stress: end -->\n"
_COLUMNS = (
    "attack",
    "runs",
    "result",
    "longest run, s",
    "longest gap of the neighbour, ms",
    "errors of the neighbour",
    "servers lost",
    "memory kept after 1 s, MiB",
)


def load_rows() -> None:
    """Import every module of `tests/tools/stress/rows`, which fills ROWS."""
    for module in pkgutil.iter_modules(tests.tools.stress.rows.__path__):
        importlib.import_module(f"tests.tools.stress.rows.{module.name}")


def line(row: Row, outcomes: Sequence[Outcome], failure: str = "") -> str:
    """Return the table's line for the runs of one row; `failure` is the text of a failed run."""
    cells = (
        row.title,
        len(outcomes),
        f"FAILED: {failure}" if failure else outcomes[-1].text,
        f"{max((one.took_s for one in outcomes), default=0.0):.1f}",
        f"{1e3 * max((one.longest_gap_s for one in outcomes), default=0.0):.0f}"
        if row.neighbour
        else "none",
        sum(len(one.errors) for one in outcomes) if row.neighbour else "none",
        sum(len(one.died) for one in outcomes),
        max((one.memory_kept >> 20 for one in outcomes), default=0),
    )
    return report.row(str(cell).replace("|", "/") for cell in cells)


def heading() -> str:
    return report.table(_COLUMNS)


def write_page(text: str, page: Path = PAGE) -> None:
    """Replace what stands between the two marks of the page."""
    old = page.read_text()
    before, rest = old.split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
