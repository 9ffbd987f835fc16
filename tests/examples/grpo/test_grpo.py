"""The example trains: its reward rises, and its log-probabilities are the sampler's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.grpo import policy
from examples.grpo.grpo import plotted, rewards, train
from model_server.config import ModelServerConfig
from model_server.kernels.cpu.native import library
from model_server.serving.sampler import Sampler
from sax.errors import CheckpointError
from tests.end_to_end.cell import Cell, local_plan
from tests.house import ROOT

MODEL = "/sax/test/adder"


def test_the_reward_counts_the_digits_that_are_right() -> None:
    told = ("12", "02", "10", "1x", "xy", "1")
    earned = [rewards((5, 7), policy.ids_of(each)) for each in told]
    assert earned == [[1, 1], [0.1, 1], [1, 0.1], [1, 0], [0, 0], [1, 0]]
    assert policy.text_of(policy.ids_of("5+7=12")) == "5+7=12"
    assert plotted([0.0, 1.0] * 10).count("<text") == 4


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_trained_and_sampled_log_probabilities_are_equal_and_the_reward_rises(
    tmp_path: Path,
) -> None:
    policy.write_folder(tmp_path / "policy", policy.random_weights(0))
    config = ModelServerConfig(slots=16, page_size=16, max_context=64)
    with Sampler(str(tmp_path / "policy"), config=config) as sampler:
        if sampler.loaded.kernels.startswith("XLA"):
            pytest.skip("the native kernels do not run here, and XLA's promise no equal bits")
        steps = list(train(sampler, 60))
        assert sampler.version == "61"
        lacking = policy.served(policy.random_weights(1))
        del lacking["model.norm.weight"]
        with pytest.raises(CheckpointError, match=r"lacks model\.norm\.weight"):
            sampler.update_weights(lacking)
        answer, *_ = sampler.sample([policy.ids_of("1+1=")], max_tokens=2)
        assert answer.weights == (("61", 2),)
    assert [each.divergence for each in steps] == [0.0] * 60
    assert all(0 < each.plain < 0.1 for each in steps), "the plain model rounds elsewhere"
    first, last = (sum(each.reward for each in part) / 10 for part in (steps[:10], steps[-10:]))
    assert last > first + 0.2


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_the_same_holds_through_a_cell_whose_replicas_change_together(tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("the native kernels do not run here, and XLA's promise no equal bits")
    policy.write_folder(tmp_path / "policy", policy.random_weights(0))
    flags = ("--slots=16", "--page_size=16", "--max_context=64")
    with Cell(local_plan(tmp_path / "cell", *flags, servers=2)) as cell:
        cell.publish(str(tmp_path / "policy"), model=MODEL, model_path="auto", replicas=2)
        done = subprocess.run(
            [sys.executable, "-m", "examples.grpo.grpo", "--model", MODEL, "--steps", "12"],
            cwd=ROOT,
            env={**os.environ, "SAX_ADMIN": cell.plan.admin_address},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{cell.logs()}"
        assert done.stdout.endswith("largest divergence of all steps: 0.0\n")
        told = json.loads(cell.sax("weights", MODEL, "--json").stdout)
        assert [each["version"] for each in told] == ["13", "13"], told
