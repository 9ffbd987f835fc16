"""Models say the same of images and sounds on one device, on meshes and in stages, chunk by chunk.

An image of Gemma 3 is a chunk of its own, and those of the others span many; of two stages the
first has the encoder, and the layers that are given vectors.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.model_server.loading.media.image_requests import Answered, check, whole_of
from tests.processes import on_devices

ROOT = Path(__file__).parents[4]
MESH, STAGES = "1:1x2x4", ("2:1x1x1", "2:1x1x2")
PLACES = {
    "gemma3": ("1:1x1x1", "1:1x1x2", MESH, *STAGES),
    "llama4": (MESH, *STAGES),
    "llava": (MESH, *STAGES),
    "llava_pixtral": (MESH, *STAGES),
    "mistral3": (MESH, *STAGES),
    "mistral3_ministral3": STAGES,
    "qwen2_5_omni": ("1:1x1x2", "2:1x1x1"),
    "qwen2_audio": ("1:1x1x1", MESH, *STAGES),
    "voxtral": ("1:1x1x1", MESH, *STAGES),
    "qwen3_vl": ("1:1x1x1", "1:1x1x2", "2:1x1x1"),
}
BY_DAY = ("gemma3", "2:1x1x2")
RUNS = [
    pytest.param(case, place, marks=[pytest.mark.nightly] * ((case, place) != BY_DAY))
    for case, places in PLACES.items()
    for place in places
]


@functools.cache
def computed(case: str, by_day: bool) -> dict[str, Any]:
    """All runs of a case by night, or the one by day, in one process with 8 fake devices."""
    module = "tests.model_server.loading.media.models_on_devices"
    places = [each for each in PLACES[case] if ((case, each) == BY_DAY) == by_day]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, "-m", module, path, *(f"{case}:{each}" for each in places)]
        subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=900)
        return json.loads(path.read_text())


@functools.cache
def wanted(case: str) -> Answered:
    return whole_of(case).answer


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("case", "place"), RUNS)
def test_answers_are_those_of_the_whole_model(case: str, place: str) -> None:
    found = computed(case, (case, place) == BY_DAY)[f"{case}:{place}"]
    if "error" in found:
        pytest.fail(found["error"])
    check(Answered(**found["first"]), wanted(case))
    check(Answered(**found["second"]), wanted(case))
