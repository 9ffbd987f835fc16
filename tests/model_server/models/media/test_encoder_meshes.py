"""Every encoder gives the same vectors on 2, 4 and 8 devices; one is in test_media_families.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.model_server.models.media.media_cases import golden_media_of, media_case_names

ROOT = Path(__file__).parents[4]
# Heads are divided where they can be, and computed by every device where not.
SHAPES = ("1x1x2", "1x1x4", "1x2x4")
RUNS = [f"{name}:{shape}" for name in media_case_names() for shape in SHAPES]

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Every run, computed by one process with 8 fake devices."""
    path = tmp_path_factory.mktemp("encoders") / "results.npz"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "NPROC": "32",  # threads: fewer than devices can wait for each other for ever
        "PYTHONPATH": str(ROOT),
    }
    module = "tests.model_server.models.media.encoders_on_meshes"
    command = [sys.executable, "-m", module, str(path), *RUNS]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=500)
    return dict(np.load(path))


@pytest.mark.parametrize("run", RUNS)
def test_vectors_on_several_devices_are_the_references(
    results: dict[str, np.ndarray], run: str
) -> None:
    if f"{run} error" in results:
        pytest.fail(str(results[f"{run} error"]))
    golden, found = golden_media_of(run.partition(":")[0]), results[run]
    count = sum(key.startswith("rows_") for key in golden)
    wanted = np.concatenate([golden[f"rows_{n}"] for n in range(count)])
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)
