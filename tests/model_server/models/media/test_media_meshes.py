"""Images are seen the same way on 2, 4 and 8 devices; one device is in test_media_families.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.model_server.models.media.media_cases import first_of_each_type, golden_media_of
from tests.model_server.models.test_families import assert_close
from tests.processes import on_devices

ROOT = Path(__file__).parents[4]
BY_DAY = "gemma3:1x1x2"


def check_runs(path: Path, *runs: str) -> dict[str, np.ndarray]:
    """What one process with 8 fake devices gives, all as the reference has it."""
    module = "tests.model_server.models.media.media_on_meshes"
    command = [sys.executable, "-m", module, str(path), *runs]
    subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=1500)
    with np.load(path) as file:
        results = dict(file)
    failed = {run: str(results[f"{run} error"]) for run in runs if f"{run} error" in results}
    for run in runs:
        if run not in failed:
            try:
                _check(run, results)
            except AssertionError as wrong:
                failed[run] = str(wrong)
    assert failed == {}
    return results


def _check(run: str, results: dict[str, np.ndarray]) -> None:
    golden = golden_media_of(run.partition(":")[0])
    count = sum(key.startswith("rows_") for key in golden)
    wanted = np.concatenate([golden[f"rows_{n}"] for n in range(count)])
    assert_close(results[f"{run} rows"], wanted)
    assert_close(results[run], golden["logits"])


def test_images_on_two_devices_give_the_references_logits(tmp_path: Path) -> None:
    """Two heads of the encoder on two devices are divided."""
    results = check_runs(tmp_path / "results.npz", BY_DAY)
    assert results[f"{BY_DAY} share"] < 1


@pytest.mark.nightly
@pytest.mark.timeout(1600)
def test_images_of_every_type_on_several_devices_give_the_references_logits(
    tmp_path: Path,
) -> None:
    """Three heads on two devices are computed by both, and only the rest is divided."""
    runs = [f"{name}:1x2x4" for name in first_of_each_type()]
    runs += [BY_DAY, "gemma3_odd:2x2x2", "qwen3_vl_three:1x1x2"]
    results = check_runs(tmp_path / "results.npz", *runs)
    assert results["gemma3_odd:2x2x2 share"] < results[f"{BY_DAY} share"] < 1
