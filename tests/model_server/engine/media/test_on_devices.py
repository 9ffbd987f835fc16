"""Images on several devices and in stages: the answers of the whole model on one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import on_devices

ROOT = Path(__file__).parents[4]
RUNS = (
    "levels and triples:2:1x1x2",
    "itself:1:1x1x2",
    "itself:2:1x1x1",
    "levels and triples:1:1x2x4",
    "itself:1:1x2x4",
)


@pytest.mark.nightly
@pytest.mark.timeout(1000)
@pytest.mark.usefixtures("strict_promotion")
@pytest.mark.parametrize("run", RUNS)
def test_answers_about_images_are_those_of_one_device(run: str) -> None:
    command = [sys.executable, "-m", "tests.model_server.engine.media.on_devices", run]
    subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=900)
