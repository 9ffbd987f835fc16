"""Modules that --import names, good and bad."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model_server.process.start import import_modules
from sax.errors import LoadFailed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place on the path; what was imported from it is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_modules_are_imported_in_order_and_once(folder: Path) -> None:
    (folder / "sax_test_first.py").write_text("seen = []\n")
    (folder / "sax_test_second.py").write_text("import sax_test_first as f\nf.seen.append(1)\n")
    import_modules(["sax_test_first", "sax_test_second", "sax_test_second"])
    assert sys.modules["sax_test_first"].seen == [1]


def test_a_module_that_fails_is_named_with_the_place(folder: Path) -> None:
    cases = [
        ("1 / 0\n", r"sax_test_bad\d\.py:1: ZeroDivisionError"),
        ("def f():\n    raise KeyError('x')\nf()\n", r"sax_test_bad\d\.py:2: KeyError: 'x'"),
        ("import sys\nsys.exit('no')\n", r"sax_test_bad\d\.py:2: SystemExit: no"),
        ("import sax_test_absent\n", r"sax_test_bad\d\.py:1: ModuleNotFoundError"),
        ("def (:\n", "SyntaxError: invalid syntax"),
    ]
    for number, (source, says) in enumerate(cases):
        (folder / f"sax_test_bad{number}.py").write_text(source)
        with pytest.raises(LoadFailed, match=f"^--import sax_test_bad{number}: .*{says}"):
            import_modules([f"sax_test_bad{number}"])


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(LoadFailed, match="--import no_such_module: ModuleNotFoundError"):
        import_modules(["no_such_module"])


@pytest.mark.extended
def test_a_start_imports_no_kernels_of_accelerators() -> None:
    """Pallas and its dialects take a fifth of the time that all imports take."""
    code = (
        "import sys\n"
        "import model_server.process.start\n"
        "print(*(name for name in sys.modules if 'pallas.mosaic.lowering' in name"
        " or name.startswith(('model_server.kernels.tpu', 'model_server.kernels.gpu'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""
