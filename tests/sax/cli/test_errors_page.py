"""docs/reference/errors.md is what the error table says."""

from __future__ import annotations

from pathlib import Path

from sax.cli.errors_page import page


def test_the_page_is_current() -> None:
    written = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
    assert written.read_text() == page(), "run 'make docs'"
