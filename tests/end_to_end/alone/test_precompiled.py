"""A cell whose model server finds programs that another process compiled: it compiles no step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import MODEL_SERVER, Cell, local_plan
from tests.end_to_end.small_model import MODEL, PATH, SMALL

# Where sets of programs are made and found is tested without a cell (tests/model_server/programs).
pytestmark = pytest.mark.nightly

FLAGS = ("--slots=1", "--page_size=64")


def precompile(place: Path, topology: str, overrides: Mapping[str, Any]) -> str:
    """`sax precompile`, in words; fails where it does."""
    pairs = [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    command = ["precompile", PATH, *pairs, "--topology", topology, "--to", str(place)]
    result = subprocess.run(
        [sys.executable, "-m", "sax.cli", *command, "--", *FLAGS],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.parametrize("devices", [1, 2])
def test_a_server_that_finds_a_set_compiles_no_step(tmp_path: Path, devices: int) -> None:
    place = tmp_path / "programs"
    overrides = {**SMALL, "NUM_LAYERS": 1, "ICI_MESH_SHAPE": [1, 1, devices]}
    said = precompile(place, f"cpu:{devices}", overrides)
    assert f"start servers with --programs {place} to use them" in said
    flags = (*FLAGS, f"--programs={place}", f"--cpu_devices={devices}")
    with Cell(local_plan(tmp_path / "cell", *flags)) as cell:
        cell.publish("None", model=MODEL, model_path=PATH, overrides=overrides)
        answer = cell.complete("How many?", model=MODEL, max_tokens=5, ignore_eos=True)
        assert answer.json()["usage"]["completion_tokens"] == 5, answer.text
        log = cell.log(MODEL_SERVER)
        assert re.search(f"all [0-9]+ programs of its steps were read from {place}", log), log
        (compiled,) = re.findall("while it loaded, XLA compiled (.*)", log)
        assert "jit(step)" not in compiled
        assert "sax_compiles_while_serving_total 0.0" in cell.metrics_page()
