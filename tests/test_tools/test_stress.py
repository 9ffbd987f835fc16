"""The stress table; `make stress` runs its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.stress.row import ROWS, Outcome
from tests.tools.stress.table import BEGIN, END, heading, line, load_rows, write_page


@pytest.fixture(autouse=True)
def rows() -> None:
    load_rows()


def test_every_row_has_a_title_of_its_own() -> None:
    assert len({row.title for row in ROWS.values()}) == len(ROWS) > 30


def test_a_line_has_the_worst_of_all_runs_and_a_cell_for_every_column() -> None:
    row = ROWS["long_prompts"]
    runs = [
        Outcome(
            text="refused",
            took_s=took_s,
            longest_gap_s=0.1 / took_s,
            errors=(),
            died=(),
            memory_kept=0,
        )
        for took_s in (1.0, 2.0)
    ]
    made = line(row, runs)
    assert made.count("|") == heading().split("\n")[0].count("|")
    assert made.endswith("| 2 | refused | 2.0 | 100 | 0 | 0 | 0 |")
    assert "FAILED: it | fell" not in line(row, runs, "it | fell")


def test_only_what_stands_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}old\n{END}below\n")
    write_page("new", page)
    write_page("newer", page)
    assert page.read_text() == f"above\n{BEGIN}\nnewer\n{END}below\n"
