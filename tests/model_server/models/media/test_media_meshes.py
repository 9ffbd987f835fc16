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
RUNS = [f"{name}:1x2x4" for name in first_of_each_type()]
RUNS += ["gemma3:1x1x2", "gemma3_odd:2x2x2", "qwen3_vl_three:1x1x2"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """All runs, computed by one process with 8 fake devices."""
    path = tmp_path_factory.mktemp("meshes") / "results.npz"
    module = "tests.model_server.models.media.media_on_meshes"
    command = [sys.executable, "-m", module, str(path), *RUNS]
    subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=500)
    return dict(np.load(path))


@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", RUNS)
def test_images_on_several_devices_give_the_references_logits(
    results: dict[str, np.ndarray], run: str
) -> None:
    if f"{run} error" in results:
        pytest.fail(str(results[f"{run} error"]))
    golden = golden_media_of(run.partition(":")[0])
    count = sum(key.startswith("rows_") for key in golden)
    assert_close(
        results[f"{run} rows"], np.concatenate([golden[f"rows_{n}"] for n in range(count)])
    )
    assert_close(results[run], golden["logits"])


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_heads_of_an_encoder_are_divided_where_they_divide(results: dict[str, np.ndarray]) -> None:
    """Two heads on two devices; three on two are computed by both, and only the rest is divided."""
    assert results["gemma3_odd:2x2x2 share"] < results["gemma3:1x1x2 share"] < 1
