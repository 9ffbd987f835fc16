"""Saxml's import paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sax.cli.commands import saxml
from sax.cli.main import app
from sax.errors import InvalidRequest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import saxml.client.python.sax as longer
import saxml.protobuf.lm_pb2
from pybind11_abseil.status import StatusNotOk
from saxml.client.python import sax
from saxml.protobuf import admin_pb2_grpc, multimodal_pb2
assert longer is sax
assert issubclass(sax.SaxError, StatusNotOk)
print(sax.__name__, multimodal_pb2.DataItem(text="x").text, admin_pb2_grpc.AdminStub.__name__)
"""


def test_a_program_imports_by_saxmls_paths(tmp_path: Path) -> None:
    saxml.install_shim(tmp_path)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "sax x AdminStub\n"


def test_it_is_installed_and_removed_on_request(tmp_path: Path) -> None:
    for words, told in (([], "wrote"), ([], "wrote"), (["--remove"], "removed")):
        done = CliRunner().invoke(app, ["saxml-shim", str(tmp_path), *words])
        assert done.exit_code == 0
        assert done.stdout.count(told) == 2
    assert not list(tmp_path.iterdir())


def test_a_package_of_somebody_else_stays(tmp_path: Path) -> None:
    other = tmp_path / "saxml"
    other.mkdir()
    (other / "__init__.py").write_text("# Saxml")
    with pytest.raises(InvalidRequest, match="another package"):
        saxml.install_shim(tmp_path)
    assert saxml.remove_shim(tmp_path) == []
    assert (other / "__init__.py").exists()


def test_a_pybind11_abseil_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pybind11_abseil").mkdir()
    assert saxml.install_shim(tmp_path) == [tmp_path / "saxml"]
