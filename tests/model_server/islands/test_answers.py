"""A model on islands answers as one on this machine's own devices: dense, experts, quantised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses

ROOT = Path(__file__).parents[3]
KINDS = ("dense", "experts", "quantised")
# Small models spend their time in the compiler: it may leave out what only makes them fast.
FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
POOL = 20_000  # bytes of keys and values: too few for all requests at once
F32 = {"DTYPE": '"float32"'}  # rounds alike in batches of any size
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def answered(models: list[str], **environ: str) -> dict[str, Any]:
    """Return what a process prints of each model."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.model_server.islands.answers", str(POOL), *models],
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": FLAGS, **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    return dict(zip(KINDS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Answers by kind of model: of this machine's devices and of two islands."""
    folder = tmp_path_factory.mktemp("islands")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("XLA_FLAGS", FLAGS)  # of the workers, which compile
    dense = write_tiny(folder / "dense")
    experts = write_tiny(folder / "experts", **EXPERTS)
    overrides = [{}, {}, {"QUANTIZE": '"int8"'}]
    models = [
        f"{path} {json.dumps(F32 | each)}"
        for path, each in zip((dense, experts, dense), overrides, strict=True)
    ]
    deployment = DeploymentProcesses(folder, "cpu:1", 2)
    try:
        # The workers of one island read the weights themselves; those of the other get them.
        deployment.worker("worker 0", 0, f"--checkpoint_root={folder}")
        deployment.worker("worker 1", 1)
        deployment.proxy()
        target = f"grpc://127.0.0.1:{deployment.proxy_port}"
        islands = answered(models, JAX_PLATFORMS="proxy", JAX_BACKEND_TARGET=target)
    finally:
        deployment.close()
        monkeypatch.undo()
    return {"here": answered(models, JAX_PLATFORMS="cpu"), "islands": islands}


@pytest.mark.extended
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["together", "alone"])
def test_answers_are_those_of_this_machine(
    both: dict[str, dict[str, Any]], kind: str, how: str
) -> None:
    here, islands = both["here"][kind], both["islands"][kind]
    assert [each["tokens"] for each in islands[how]] == [each["tokens"] for each in here[how]]
    for found, wanted in zip(islands[how], here[how], strict=True):
        # Activations are quantised, too: rounded otherwise in another batch.
        most = 0.05 if kind == "quantised" else 1e-4
        np.testing.assert_allclose(found["numbers"], wanted["numbers"], rtol=most, atol=most)


@pytest.mark.extended
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_preempted_and_pages_shared_on_islands_too(
    both: dict[str, dict[str, Any]], kind: str
) -> None:
    assert both["here"][kind]["preemptions"]
    for name in ("preemptions", "prefix_hits"):
        assert both["islands"][kind][name], name
