"""Stages give the tokens of one host: real models, each stage on fake devices of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model_server.models.family_cases import first_of_each_family, is_encoder
from tests.model_server.multihost.played import DECODES
from tests.processes import on_devices

ROOT = Path(__file__).parents[3]
# Experts, an untied head, tensor parallelism inside a stage; a tied head and random weights are in
# test_stage_hosts.py.
QUICK = ("mixtral:2:1x1x2",)
MORE = (
    "lm_cloud:3:1x1x2",
    "llama_tied:3:1x1x2",
    "deepseek_v3:3:1x1x2",
    "qwen3_moe:2:1x1x4",
    "gemma3:4:1x1x2",
    "llama_untied_mqa:2:1x2x2",
)
RECURRENT = (  # search nothing
    "bailing_hybrid",
    "bamba",
    "falcon_h1",
    "glm5_next",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "mamba2",
    "minimax",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "qwen4_exp",
)
SAXML = ("lm_cloud", "c4_spmd_gpt3")  # take no checkpoint; the same module as each other


def check_each(runs: Sequence[str]) -> None:
    wrong: dict[str, str] = {}
    for run, found in computed(runs).items():
        try:
            check(found, 0 if run.startswith(RECURRENT) else 4)
        except AssertionError as error:
            wrong[run] = str(error)
    assert wrong == {}


def computed(runs: Sequence[str]) -> dict[str, Any]:
    """What one process with 8 fake devices gives for all of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, "-m", "tests.model_server.multihost.on_stages", path, *runs]
        subprocess.run(command, env=on_devices(8), cwd=ROOT, check=True, timeout=900)
        return json.loads(path.read_text())


def check(found: dict[str, Any], searches: int = 4) -> None:
    assert "error" not in found, found["error"]
    whole = found.pop("whole")
    assert len(whole["answers"]) == searches
    # They say something: a Gemma of random weights repeats its tokens, but not how likely they are.
    assert len(set(np.round(whole["numbers"], 4))) > DECODES
    assert set(found) == {"staged", "one lane", "other lane"}
    for staged in found.values():
        assert staged["tokens"] == whole["tokens"]
        assert staged["answers"] == whole["answers"]
        np.testing.assert_allclose(staged["numbers"], whole["numbers"], rtol=1e-4, atol=1e-4)


def test_stages_give_the_tokens_of_one_host() -> None:
    check_each(QUICK)


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_more_stages_with_more_devices_each_do_too() -> None:
    check_each(MORE)


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_every_family_can_be_cut() -> None:
    check_each(
        [
            f"{name}:2:1x1x1"
            for name in first_of_each_family()
            if not is_encoder(name) and name not in SAXML
        ]
    )
