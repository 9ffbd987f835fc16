"""A model answers the same however its axes lie on four devices, and lies as it was told to."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import on_devices

# Every family on a mesh is compared with its reference in every run (test_meshes).
pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
MESHES = ("1x1x2", "1x2x1", "1x2x2", "2x1x2", "1x1x4")
DENSE = 'dense 1x1x4 {"tokens": "model"}'  # two KV heads, copied
EXPERTS = 'experts 1x2x2 {"experts": "data", "tokens": "data"}'
RULES = (
    {},
    {"tokens": "data"},
    {"tokens": "model"},
    {"tokens": "replica"},
    {"experts": "data"},
    {"experts": "data", "tokens": "data"},
    {"experts": None, "embed": None, "tokens": "data"},
    {"heads": "data", "ffw": "data", "vocab": None, "tokens": "model"},
)


def answers(*runs: str) -> dict[str, Any]:
    """What one process with four fake devices says of each run."""
    command = [sys.executable, "-m", "tests.model_server.models.tokens_on_meshes", *runs]
    done = subprocess.run(
        command, env=on_devices(4), cwd=ROOT, check=True, timeout=1500, capture_output=True
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answers("dense 1x1x1 {}", "experts 1x1x1 {}", DENSE, EXPERTS)


@pytest.mark.parametrize("run", [DENSE, EXPERTS])
def test_divided_rows_and_experts_give_the_tokens_of_one_device(
    found: dict[str, Any], run: str
) -> None:
    assert found[run]["tokens"] == found[f"{run.split()[0]} 1x1x1 {{}}"]["tokens"]


def test_the_sequences_are_not_all_one_token(found: dict[str, Any]) -> None:
    for run in ("dense 1x1x1 {}", "experts 1x1x1 {}"):
        assert all(len(set(answer)) > 3 for answer in found[run]["tokens"])


def test_rows_are_divided_where_tokens_are(found: dict[str, Any]) -> None:
    assert 20 in found["dense 1x1x1 {}"]["rows"]
    assert 5 in found[DENSE]["rows"]
    assert 10 in found[EXPERTS]["rows"]


def test_experts_over_one_axis_and_their_width_over_another_are_a_quarter_each(
    found: dict[str, Any],
) -> None:
    assert found[EXPERTS]["share"] < 0.3


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("model", ["dense", "experts"])
def test_every_mesh_and_rule_gives_the_tokens_of_one_device(model: str) -> None:
    pairs = itertools.product(MESHES, map(json.dumps, RULES))
    alone, *runs = [f"{model} 1x1x1 {{}}", *(f"{model} {mesh} {rules}" for mesh, rules in pairs)]
    found = answers(alone, *runs)
    different = [run for run in runs if found[run]["tokens"] != found[alone]["tokens"]]
    assert not different
