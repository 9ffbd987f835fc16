"""The pages name only metrics that a process exposes."""

from __future__ import annotations

import re
from pathlib import Path

from model_server.serving.metrics.registry import NAMES, OLDER
from tests.each_case import each_case
from tests.house import ROOT
from tests.k8s.metrics import exposed

OBSERVABILITY = ROOT / "docs" / "reference" / "observability.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NAME = re.compile(r"\b(?:sax|process)_[a-z_]+[a-z]\b")
_OTHERS = {"sax_cell", "sax_root", "sax_timeout", "sax_admin_exp_assigner"}  # a field, flags


def named(page: str) -> set[str]:
    return set(_NAME.findall(page)) - _OTHERS


@each_case("page", PAGES)
def test_a_page_names_only_metrics_that_exist(page: Path) -> None:
    assert named(page.read_text()) - exposed() - _families() == set()


def test_there_are_names_to_check() -> None:
    assert {"sax_gateway_requests_total"} <= named(OBSERVABILITY.read_text())


def test_one_page_names_all_that_there_is() -> None:
    page = OBSERVABILITY.read_text()
    histograms = {name for name in exposed() if name.endswith(("_bucket", "_sum", "_count"))}
    ours = {name for name in exposed() - histograms if name.startswith("sax_")} | _families()
    # Each metric that a collector of the admin's names is taken for a gauge, and a counter.
    ours = {name for name in ours if not name.startswith("sax_admin_")}
    theirs = {name for _, name in (*NAMES, *OLDER)}
    assert {name for name in ours - _theirs() if f"`{name}`" not in page} == set()
    assert {name for name in theirs if f"`{name}" not in page} == set()


def test_the_page_names_all_of_an_admin_server() -> None:
    source = (ROOT / "admin_server" / "api" / "metrics.py").read_text()
    found = set(re.findall(r'"(sax_admin_\w+)"', source))
    assert len(found) > 20
    page = OBSERVABILITY.read_text()
    assert {name for name in found if not re.search(rf"`{name}(_total)?`", page)} == set()


def _theirs() -> set[str]:
    return {name for name in exposed() if name.startswith("vllm:")}


def _families() -> set[str]:
    """Names of histograms, which pages name without an ending."""
    buckets = (name for name in exposed() if name.startswith("sax_") and name.endswith("_bucket"))
    return {name.removesuffix("_bucket") for name in buckets}
