"""`sax doctor`, `sax clean` and `sax --version`: what they print and do, without jax."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sax.cli.doctor.machine import kept_folders
from sax.cli.main import app
from sax.distribution import version
from sax.finding import CHECKS
from tests.house import ROOT


@pytest.fixture(autouse=True)
def small_home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("HF_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp(name)))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


def test_a_doctor_tells_of_everything_once_and_ends_well_without_problems() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    found = json.loads(done.stdout)
    names = [each["about"] for each in found]
    assert {"jax", "processor", "memory", "ports", "disk", "kernels"} <= set(names)
    assert len(names) == len(set(names))
    assert done.exit_code == any(each["level"] == "problem" for each in found)
    plain = CliRunner().invoke(app, ["doctor"]).stdout
    assert all(f"  {name}: " in plain for name in names)


def test_what_can_be_made_again_is_removed_and_what_cannot_stays() -> None:
    folders = list(kept_folders(os.environ))
    for each in folders:
        each.place.mkdir(parents=True)
        (each.place / "file").write_bytes(b"x" * 1000)
    assert len(cleaned("--dry-run")) == 2
    assert all(each.place.exists() for each in folders)
    gone = cleaned()
    assert {Path(each["path"]) for each in gone} == {e.place for e in folders if e.made_again}
    assert [each["bytes"] for each in gone] == [1000, 1000]
    assert [each.place.exists() for each in folders] == [True, False, False, True]
    assert CliRunner().invoke(app, ["clean"]).stdout == "nothing to remove\n"


def test_what_cannot_be_removed_is_named() -> None:
    (*_, compiled, _) = kept_folders(os.environ)
    compiled.place.parent.mkdir(parents=True)
    compiled.place.write_bytes(b"a file in the place of the folder")
    done = CliRunner().invoke(app, ["clean"])
    assert (done.exit_code, str(compiled.place) in done.stderr) == (1, True), done.output


def cleaned(*words: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["clean", "--json", *words])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_version_is_told_with_its_build_kernels_and_jax() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0, done.output
    first, *rows = done.stdout.splitlines()
    assert first == f"sax {version()}"
    told = dict(re.fullmatch(r"  (\w+) +(.*)", row).groups() for row in rows)  # pyright: ignore
    assert told["build"] == f"the sources in {ROOT}"
    assert told["kernels"] == CHECKS["kernels"]().text
    assert told["jax"] == f"{version_of('jax')}, jaxlib {version_of('jaxlib')}"


@pytest.mark.extended
@pytest.mark.parametrize(("word", "loaded"), [("--version", "[]"), ("doctor", "['sax.cli.main']")])
def test_neither_imports_jax_and_the_version_no_commands(word: str, loaded: str) -> None:
    script = (
        "import sys\nfrom sax.cli.start import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([each for each in ('jax', 'jaxlib', 'sax.cli.main') if each in sys.modules])"
    )
    done = subprocess.run(
        (sys.executable, "-c", script, word), capture_output=True, text=True, cwd=ROOT
    )
    assert CHECKS["kernels"]().text in done.stdout
    assert done.stdout.splitlines()[-1] == loaded, done.stderr
