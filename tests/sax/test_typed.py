"""Types of the SDK reach its users: the marker and the stubs are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import Distribution
from setuptools.command.build_py import build_py

from tests.house import ROOT

PROGRAM = """
from sax.client import Client

with Client("127.0.0.1:1") as client:
    reveal_type(client.detokenize("/sax/test/m", [1]))
    client.generate_to(1)
"""


@pytest.mark.filterwarnings("ignore:.*experimental")
def test_a_wheel_holds_the_marker_and_the_stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = Distribution()
    made.parse_config_files()
    made.packages = ["sax", "sax.proto"]  # found by a walk of the tree, which other tests do
    made.include_package_data = False  # what git tracks, which sdists take
    command = build_py(made)
    command.finalize_options()
    files = {
        os.path.join(folder, name) for _, folder, _, names in command.data_files for name in names
    }
    assert "sax/py.typed" in files
    assert {"sax/proto/tokens_pb2.pyi", "sax/proto/tokens.proto"} <= files


@pytest.mark.extended
def test_a_type_checker_reads_them_in_a_users_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable)
    done = subprocess.run(
        [*command, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    told = json.loads(done.stdout)["generalDiagnostics"]
    texts = [(each["severity"], each["message"]) for each in told]
    assert ("information", 'Type of "client.detokenize("/sax/test/m", [1])" is "str"') in texts
    assert [severity for severity, _ in texts] == ["information", "error"]
