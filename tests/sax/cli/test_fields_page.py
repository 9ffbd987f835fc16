"""docs/reference/sampling.md is what the table of sampling fields says."""

from __future__ import annotations

from pathlib import Path

from sax.cli.fields_page import page
from sax.fields.sampling import SAMPLING


def test_the_page_is_current_and_has_a_row_for_every_field() -> None:
    written = Path(__file__).parents[3] / "docs" / "reference" / "sampling.md"
    assert written.read_text() == page(), "run 'make docs'"
    assert [name for name in SAMPLING if f"| `{name}` |" not in page()] == []
