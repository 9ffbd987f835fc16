"""Qwen3-VL says the same of images in chunks of four tokens, on meshes and in stages.

An image spans many chunks; of two stages the first has the layers that are given vectors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.model_server.loading.media.image_requests import Answered, check, wanted_of
from tests.model_server.models.media.media_cases import images_of, load_media, prepared_of
from tests.model_server.models.media.media_runs import recipe_of, seen

ROOT = Path(__file__).parents[4]
CASE = "qwen3_vl"
RUNS = [f"{CASE}:{where}" for where in ("1:1x1x1", "1:1x1x2", "2:1x1x1")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All runs, computed by one process with 8 fake devices."""
    path = tmp_path_factory.mktemp("devices") / "results.json"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
        "NPROC": "32",  # threads: fewer than devices can wait for each other for ever
        "PYTHONPATH": str(ROOT),
    }
    module = "tests.model_server.loading.media.gemma_on_devices"
    command = [sys.executable, "-m", module, str(path), *RUNS]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=900)
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def wanted() -> Answered:
    decoder, encoder, whole = load_media(CASE)
    recipe = recipe_of(whole)
    images = [prepared_of(recipe, image) for image in images_of(CASE)]
    return wanted_of(CASE, decoder, recipe, seen(encoder, recipe, images), images)


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("run", RUNS)
def test_answers_about_images_are_those_of_the_whole_model(
    results: dict[str, Any], wanted: Answered, run: str
) -> None:
    if "error" in results[run]:
        pytest.fail(results[run]["error"])
    check(Answered(**results[run]["first"]), wanted)
    check(Answered(**results[run]["second"]), wanted)
