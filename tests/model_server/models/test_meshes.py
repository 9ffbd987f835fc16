"""Every family gives the same logits on 2, 4 and 8 devices; one device is in test_families.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.model_server.models.family_cases import first_of_each_family, golden_of, is_encoder
from tests.processes import on_devices

ROOT = Path(__file__).parents[3]
# A dense family, one with experts and one whose layers keep states; images: test_media_meshes.py.
BY_DAY = ("llama_tied:2x2x2", "qwen3_moe:1x2x4", "lfm2:1x2x4")
# KV heads are divided, copied and kept whole; on 8 devices the embedding dimension is divided too.
SHAPES = ("1x2x4", "1x1x2", "1x1x4")
OTHERS = ("llama_untied_mqa:1x1x8", "gpt2:1x1x8", "qwen3_moe:1x1x8")


def runs_of(shape: str) -> list[str]:
    """Every family on such a mesh, and with the first the cases that only other meshes show."""
    names = [name for name in first_of_each_family() if not is_encoder(name)]
    others = OTHERS if shape == SHAPES[0] else ()
    return [run for run in (*(f"{name}:{shape}" for name in names), *others) if run not in BY_DAY]


def wrong_of(runs: list[str], path: Path) -> dict[str, str]:
    """What is wrong with each run that is not right; all in one process with 8 fake devices."""
    command = [sys.executable, "-m", "tests.model_server.models.on_meshes", str(path), *runs]
    subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=1500)
    with np.load(path) as file:
        results = dict(file)
    return {run: wrong for run in runs if (wrong := _wrong(run, results))}


def _wrong(run: str, results: dict[str, np.ndarray]) -> str:
    if f"{run} error" in results:
        return str(results[f"{run} error"])
    wanted = golden_of(run.partition(":")[0])["logits"]
    if not np.allclose(results[run], wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4):
        return f"logits are off by up to {np.abs(results[run] - wanted).max()}"
    # Most weights are divided: the odd vocabulary, and heads that do not divide, stay whole.
    share = results[f"{run} share"]
    return "" if share < 0.75 else f"a device holds {share} of the weights"


def test_a_family_of_each_kind_is_divided_and_gives_the_references_logits(tmp_path: Path) -> None:
    assert wrong_of([*BY_DAY], tmp_path / "results.npz") == {}


@pytest.mark.nightly
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_family_is_divided_and_gives_the_references_logits(
    tmp_path: Path, shape: str
) -> None:
    assert wrong_of(runs_of(shape), tmp_path / "results.npz") == {}
