"""A wheel of this tree, installed into an empty environment outside of it, answers there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_server.kernels.cpu import native
from sax.distribution import NAME
from tests.demo_model import demo_model
from tests.house import ROOT
from tests.tools.release.distributions import THIS_MACHINE, build_wheel, wrong_with
from tests.tools.release.installed import Environment, environment
from tests.tools.release.tree import copy_tree

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    tree = copy_tree(ROOT, folder / "tree")
    return build_wheel(tree, folder / "dist", THIS_MACHINE, "0123456789ab")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("installed") / "venv", f"{wheel}[cpu]")


def test_a_wheel_is_for_its_machine_and_every_python(wheel: Path) -> None:
    assert wheel.name.startswith(f"{NAME.replace('-', '_')}-")
    assert "-py3-none-" in wheel.name
    if native.available():  # else there is no compiler here
        assert wrong_with(wheel) == []


def test_it_tells_its_commit_kernels_and_jax(installed: Environment) -> None:
    told = installed.versions()
    assert f"{NAME} of commit 0123456789ab" in told
    if (used := native.in_use()) is not None:
        assert f"native, for {used.instructions}" in told
    assert "jaxlib 0." in told


def test_its_doctor_finds_no_problem_here(installed: Environment) -> None:
    found = json.loads(installed.run("sax", "doctor", "--json"))
    assert "problem" not in {each["level"] for each in found if each["about"] != "disk"}


def test_it_starts_a_cell_with_the_demo_model_and_answers(installed: Environment) -> None:
    assert "Paris" in installed.answer(demo_model())
