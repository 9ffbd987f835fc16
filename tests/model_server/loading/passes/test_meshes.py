"""Models that make no tokens give the same numbers on several devices as on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model_server.loading.passes.test_classes import CASES
from tests.model_server.sentence_folders import golden_sentences

ROOT = Path(__file__).parents[4]
# Inputs are divided over the first two axes, weights over the last two.
SMOKE = "bert:2x2x2"
OTHERS = (
    "embeddinggemma:2x2x2",
    "bert:8x1x1",
    "bert:1x1x4",
    "llama:1x2x4",
    "modernbert:2x1x3",
    "modernbert:1x1x4",
    "xlm_roberta:1x4x2",
    "qwen3_embedding:4x1x2",
)
SETS = ((SMOKE,), OTHERS)
EVERY_RUN = [SMOKE, *(pytest.param(run, marks=pytest.mark.extended) for run in OTHERS)]


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The run's result; all of its set are computed by one process with 8 fake devices."""
    folder = tmp_path_factory.mktemp("meshes")

    def of(run: str) -> Any:
        number, runs = next(found for found in enumerate(SETS) if run in found[1])
        path = folder / f"{number}.json"
        if not path.exists():
            _compute(runs, path)
        return json.loads(path.read_text())[run]

    return of


def _compute(runs: tuple[str, ...], path: Path) -> None:
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "NPROC": "32",  # threads: fewer than devices can wait for each other for ever
        "PYTHONPATH": str(ROOT),
    }
    script = "tests.model_server.loading.passes.on_meshes"
    command = [sys.executable, "-m", script, str(path), *runs]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=500)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", EVERY_RUN)
def test_vectors_on_several_devices_are_the_references(
    run: str, results_of: Callable[[str], Any]
) -> None:
    case, found = run.partition(":")[0], results_of(run)
    assert not isinstance(found, str), found
    if (CASES / case).is_dir():
        wanted = [np.load(CASES / case / "golden.npz")["logits"]]
    else:
        wanted = golden_sentences(case)["vectors"]
    np.testing.assert_allclose(found, wanted, atol=2e-4)
