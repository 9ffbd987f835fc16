"""`sax doctor` and `sax --version`: what they print, without jax."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version as version_of

import pytest
from typer.testing import CliRunner

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
