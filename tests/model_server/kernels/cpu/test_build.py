"""How wheels are built: for which machines and jaxlibs, what they bear, what an sdist holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from setuptools import Distribution, Extension

from model_server.kernels.cpu.build import BuildNative, MachineWheel, StampedPackages
from model_server.kernels.cpu.shared_library import fits
from tests.each_case import each_case
from tests.house import ROOT

VARIABLES = ("SAX_BUILD_CPU_KERNELS", "SAX_BUILD_CPU_MACHINE", "SAX_BUILD_COMMIT")


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without sources, and none of the variables."""
    monkeypatch.chdir(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def distribution() -> Distribution:
    return Distribution(
        {"name": "x", "version": "1", "ext_modules": [Extension("a._native", ["a.cc"])]}
    )


def tag() -> tuple[str, str, str]:
    command = MachineWheel(distribution())
    command.finalize_options()
    return command.get_tag()


def test_a_wheel_is_for_every_python_on_the_machine_that_its_library_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python, abi, here = tag()
    assert (python, abi) == ("py3", "none")
    assert here != "any"
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setenv("SAX_BUILD_CPU_MACHINE", machine)
        assert tag() == ("py3", "none", f"manylinux_2_27_{machine}")


def test_a_wheel_without_the_library_is_for_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAX_BUILD_CPU_KERNELS", "none")
    assert tag() == ("py3", "none", "any")


def test_the_library_is_named_without_the_python_that_built_it() -> None:
    assert BuildNative(distribution()).get_ext_filename("a._native") in (
        "a/_native.so",
        r"a\_native.pyd",
    )


@pytest.mark.parametrize(
    ("given", "kept"), [("0123abc", "0123abc\n"), ("unknown", "\n"), ("", "\n")]
)
def test_a_wheel_bears_the_commit_that_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, kept: str
) -> None:
    monkeypatch.setenv("SAX_BUILD_COMMIT", given)
    command = StampedPackages(distribution())
    command.finalize_options()
    command.build_lib = str(tmp_path / "lib")
    command.run()
    assert (tmp_path / "lib" / "sax" / "commit.txt").read_text() == kept


def jaxlib_of(texts: list[str | dict[str, str]]) -> SpecifierSet:
    """Return the versions of jaxlib that a list of requirements asks for."""
    named = (Requirement(each) for each in texts if isinstance(each, str))
    return next(each.specifier for each in named if each.name == "jaxlib")


def test_what_is_built_has_the_interface_of_the_oldest_jaxlib_that_sax_runs_with() -> None:
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runs_with = jaxlib_of(whole["project"]["optional-dependencies"]["cpu"])
    (oldest,) = (each.version for each in runs_with if each.operator == ">=")
    for builds in (whole["build-system"]["requires"], whole["dependency-groups"]["release"]):
        assert str(jaxlib_of(builds)) == f"=={oldest}.*"


@each_case(
    "interface, theirs, calls",
    [(3, 3, True), (3, 5, True), (5, 3, False), (1003, 1004, True), (3, 1003, False)],
)
def test_a_jaxlib_calls_libraries_of_its_own_interface_and_of_older_ones(
    interface: int, theirs: int, calls: bool
) -> None:
    assert fits(interface, theirs) is calls


def test_an_sdist_holds_every_file_that_the_library_is_compiled_of() -> None:
    (native,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "ext-modules"
    ]
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "model_server" / "kernels" / "cpu" / "src").iterdir()
    }
    assert {*native["sources"], *native["depends"]} == there
