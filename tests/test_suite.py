"""Every test is run by exactly one of the make targets."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.conftest import WHOLE_SYSTEM
from tests.demo_model import ROOT
from tests.work_units import unit_of

MARKERS = ("nightly", "extended")


def selections() -> dict[str, str]:
    """What each make target passes to -m."""
    return dict(
        re.findall(r'^([\w-]+):.*\n\t\$\(PYTEST\) .*-m "([^"]+)"', _makefile(), re.MULTILINE)
    )


@pytest.mark.parametrize("held", [*itertools.product([False, True], repeat=len(MARKERS))])
def test_each_combination_of_markers_is_run_by_one_target(held: tuple[bool, ...]) -> None:
    markers = dict(zip(MARKERS, held, strict=True))
    chosen = [name for name, which in selections().items() if eval(which, {}, markers)]
    assert len(chosen) == 1, f"a test with {markers} is run by {chosen}"


def test_the_targets_are_those_that_the_page_names() -> None:
    assert list(selections()) == ["test", "test-all", "nightly"]
    images = re.search(r'^images:.*\n\t.*-m "(.*)".* tests/images', _makefile(), re.MULTILINE)
    assert images is not None, "make nightly leaves tests/images out, so that make images runs them"
    assert images[1] == selections()["nightly"]
    assert "--ignore tests/images" in _makefile()


def test_ci_runs_both_targets() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == [
        "make golang",
        "make check",
        "make test",
        "make test-all",
    ]


def test_tests_of_the_whole_system_are_extended_unless_they_are_smoke_tests(
    request: pytest.FixtureRequest,
) -> None:
    for item in request.session.items:
        room = item.path.relative_to(ROOT / "tests").parts[0]
        if room in WHOLE_SYSTEM:
            marked = [item.get_closest_marker(name) is not None for name in ("smoke", "extended")]
            assert sorted(marked) == [False, True], item.nodeid


def test_smoke_tests_that_share_the_cell_are_run_by_one_worker(
    request: pytest.FixtureRequest,
) -> None:
    sharing = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.get_closest_marker("smoke") is not None
        and {"cell", "served"} & {*item.fixturenames}
    ]
    assert {unit_of(item.nodeid) for item in sharing} <= {"tests/end_to_end"}


def _makefile() -> str:
    return (ROOT / "Makefile").read_text()
