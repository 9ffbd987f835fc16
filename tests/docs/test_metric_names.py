"""The pages name only metrics that a process exposes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.k8s.metrics import exposed

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_NAME = re.compile(r"\b(?:sax|process)_[a-z_]+[a-z]\b")
_OTHERS = {"sax_cell", "sax_root", "sax_timeout"}  # a field of Saxml's, flags


def named(page: str) -> set[str]:
    return set(_NAME.findall(page)) - _OTHERS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_page_names_only_metrics_that_exist(page: Path) -> None:
    assert named(page.read_text()) - exposed() - _families() == set()


def test_there_are_names_to_check() -> None:
    assert {"sax_gateway_requests_total"} <= named((ROOT / "docs" / "operations.md").read_text())


def _families() -> set[str]:
    """Names of histograms, which pages name without an ending."""
    return {name.removesuffix("_bucket") for name in exposed() if name.endswith("_bucket")}
