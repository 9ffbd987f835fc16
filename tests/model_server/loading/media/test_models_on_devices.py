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

from tests.model_server.loading.media.image_requests import Answered, check, wanted_of
from tests.model_server.models.media.media_cases import images_of, load_media, prepared_of
from tests.model_server.models.media.media_runs import recipe_of, seen
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
    "qwen2_audio": ("1:1x1x1", MESH, *STAGES),
    "qwen3_vl": ("1:1x1x1", "1:1x1x2", "2:1x1x1"),
}
# What they have that Gemma 3, Qwen's and Llama 4 have not is in their encoders.
SLOW = ("llava", "llava_pixtral", "mistral3", "mistral3_ministral3")
RUNS = [
    pytest.param(case, place, marks=[pytest.mark.nightly] * (case in SLOW))
    for case, places in PLACES.items()
    for place in places
]


@functools.cache
def computed(case: str) -> dict[str, Any]:
    """All runs of a case, computed by one process with 8 fake devices."""
    module = "tests.model_server.loading.media.models_on_devices"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, "-m", module, path, *(f"{case}:{each}" for each in PLACES[case])]
        subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=900)
        return json.loads(path.read_text())


@functools.cache
def wanted(case: str) -> Answered:
    decoder, encoder, whole = load_media(case)
    recipe = recipe_of(whole)
    images = [prepared_of(recipe, image) for image in images_of(case)]
    return wanted_of(case, decoder, recipe, seen(encoder, recipe, images), images)


@pytest.mark.extended
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("case", "place"), RUNS)
def test_answers_are_those_of_the_whole_model(case: str, place: str) -> None:
    found = computed(case)[f"{case}:{place}"]
    if "error" in found:
        pytest.fail(found["error"])
    check(Answered(**found["first"]), wanted(case))
    check(Answered(**found["second"]), wanted(case))
