"""Every test is run by exactly one of the make targets, and rooms have budgets."""

from __future__ import annotations

import itertools
import re
import tomllib

import pytest

from tests import budget, targets
from tests.targets import ROOT

MARKERS = ("quick", "nightly")


def selections() -> dict[str, str]:
    """What each make target passes to -m."""
    return dict(
        re.findall(
            r'^([\w-]+):.*\n(?:\t(?!.*-m ").*\n)*\t.*\$\(PYTEST\) .*-m "([^"]+)"',
            _makefile(),
            re.MULTILINE,
        )
    )


def test_each_test_is_run_by_one_target() -> None:
    chosen = selections()
    touched = chosen.pop("test-touched")
    assert list(chosen) == ["test", "test-all", "nightly"]
    assert touched == chosen["nightly"], "what a change touches is run before the night"
    for held in itertools.product([False, True], repeat=len(MARKERS)):
        markers = dict(zip(MARKERS, held, strict=True))
        if markers == {"quick": True, "nightly": True}:
            continue  # tests/conftest.py marks no nightly test as quick
        run_by = [name for name, which in chosen.items() if eval(which, {}, markers)]
        assert len(run_by) == 1, f"a test with {markers} is run by {run_by}"


def test_no_test_is_quick_and_of_another_target(request: pytest.FixtureRequest) -> None:
    wrong = [
        item.nodeid
        for item in request.session.items
        if item.get_closest_marker("quick")
        and (item.get_closest_marker("extended") or item.get_closest_marker("nightly"))
    ]
    assert not wrong


def test_images_have_a_target_of_their_own() -> None:
    images = re.search(r'^images:.*\n\t.*-m "(.*)".* tests/images', _makefile(), re.MULTILINE)
    assert images is not None
    assert images[1] == selections()["nightly"]
    assert "--ignore tests/images" in _makefile()


def test_ci_runs_both_targets_and_the_checks() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == [
        "make test",
        "make check",
        "make test-all",
    ]


def test_quick_files_reach_no_compiler_but_those_that_are_named() -> None:
    assert targets.is_quick("tests/sax/test_names.py")
    assert targets.is_quick("tests/model_server/engine/test_scheduler.py")
    runner = "tests/model_server/engine/running/test_runner.py"
    assert not targets.is_quick(runner), "it imports jax"
    assert not targets.is_quick("tests/stores/test_fault_proxy.py"), "stores are whole systems"
    assert [name for name in targets.NAMED if not (ROOT / name.split("::")[0]).exists()] == []


def test_a_change_runs_the_nightly_tests_of_its_mirror_and_of_what_shares_it() -> None:
    assert targets.protecting(["docs/explanation/cpu.md", "tests/sax/test_names.py"]) == []
    assert targets.protecting(["sax/wire/embed.py"]) == ["tests/sax/wire"]
    layers = targets.protecting(["model_server/models/layers/rope.py"])
    assert layers == ["tests/model_server/models"], "the grids of families stand on the layers"
    places = [*targets.PROTECTED_BY, *itertools.chain(*targets.PROTECTED_BY.values())]
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_a_room_at_twice_its_budget_is_named() -> None:
    allowed = {"sax": 20.0, "k8s": 1.0}
    assert budget.over_budget({"sax": 39.0, "k8s": 9.0}, allowed, slowness=1) == []
    assert budget.over_budget({"sax": 41.0}, allowed, slowness=1) == ["sax: 41 s, budget 20 s"]
    assert budget.over_budget({"sax": 41.0}, allowed, slowness=1.5) == []
    assert budget.over_budget({"new": 11.0}, allowed, slowness=1) == ["new: 11 s, budget 5 s"]
    assert budget.room_of("tests/model_server/engine/paging/test_pool.py") == "model_server/engine"
    assert budget.room_of("tests/sax/cli/test_stages.py") == "sax"
    assert budget.room_of("tests/test_layering.py") == "tests"


def test_every_room_with_a_budget_exists() -> None:
    table = tomllib.loads(budget.BUDGETS.read_text())
    assert set(table) == {"test", "test-all"}
    rooms = {room for each in table.values() for room in each} - {"tests"}
    assert [room for room in rooms if not (ROOT / "tests" / room).is_dir()] == []


def _makefile() -> str:
    return (ROOT / "Makefile").read_text()
