"""Every family gives the same logits on 2, 4 and 8 devices; one device is in test_families.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.model_server.models.family_cases import first_of_each_family, golden_of, is_encoder
from tests.processes import on_devices

ROOT = Path(__file__).parents[3]
# KV heads are divided, copied and kept whole; on 8 devices the embedding dimension is divided too.
SHAPE, OTHERS = "1x2x4", ("1x1x2", "1x1x4")
FAMILIES = [name for name in first_of_each_family() if not is_encoder(name)]
RUNS = [f"{name}:{SHAPE}" for name in FAMILIES]
RUNS += ["llama_tied:2x2x2", "llama_untied_mqa:1x1x8", "gpt2:1x1x8", "qwen3_moe:1x1x8"]
SLOW_RUNS = [f"{name}:{shape}" for name in FAMILIES for shape in OTHERS]
SMOKE = "llama_tied:2x2x2"
SETS = ([SMOKE], [run for run in RUNS if run != SMOKE], SLOW_RUNS)
EVERY_RUN = [
    SMOKE,
    *(pytest.param(run, marks=pytest.mark.extended) for run in SETS[1]),
    *(pytest.param(run, marks=pytest.mark.nightly) for run in SLOW_RUNS),
]


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, np.ndarray]]:
    """The set with this run in it, computed by one process with 8 fake devices."""
    folder = tmp_path_factory.mktemp("meshes")

    def of(run: str) -> dict[str, np.ndarray]:
        number, runs = next(found for found in enumerate(SETS) if run in found[1])
        path = folder / f"{number}.npz"
        if not path.exists():
            _compute(runs, path)
        return dict(np.load(path))

    return of


def _compute(runs: list[str], path: Path) -> None:
    command = [sys.executable, "-m", "tests.model_server.models.on_meshes", str(path), *runs]
    subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=500)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", EVERY_RUN)
def test_logits_on_several_devices_are_the_references(
    results_of: Callable[[str], dict[str, np.ndarray]], run: str
) -> None:
    results = results_of(run)
    if f"{run} error" in results:
        pytest.fail(str(results[f"{run} error"]))
    wanted = golden_of(run.partition(":")[0])["logits"]
    np.testing.assert_allclose(results[run], wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", EVERY_RUN)
def test_the_weights_are_divided(
    results_of: Callable[[str], dict[str, np.ndarray]], run: str
) -> None:
    """Most of them: the odd vocabulary, and heads that do not divide, stay whole."""
    assert results_of(run)[f"{run} share"] < 0.75
