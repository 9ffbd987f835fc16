"""A model on islands answers as one on this machine's own devices: dense, experts, quantised, in
stages, and with prompts from another island.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.test_recurrent_models import folder_of
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses

ROOT = Path(__file__).parents[3]
MOVED = ("prompts", "states")
KINDS = ("dense", "experts", "quantised", "stages", *MOVED)
LONG_POOL = 400_000
POOL = 20_000  # bytes of keys and values: too few for all requests at once
F32 = {"DTYPE": '"float32"'}  # rounds alike in batches of any size
# One per island. Pages of one layer are half as large; each lane has eight, as a sequence may need.
STAGES = {"NUM_STAGES": "2", "KV_CACHE_BYTES": "14000"}
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def answered(
    models: Sequence[str], pool: int, prefill: str, environ: dict[str, str]
) -> tuple[list[Any], str]:
    """Return what a process prints of each model, and what it logs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.model_server.islands.answers", str(pool), prefill, *models],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        check=False,
    )
    logged = done.stderr.decode()
    assert not done.returncode, logged
    return list(map(json.loads, done.stdout.splitlines())), logged


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Answers by kind of model: of this machine's devices and of two islands.

    Of "prompts" and "states" the first island computes the prompts and the second one answers.
    """
    folder = tmp_path_factory.mktemp("islands")
    dense = write_tiny(folder / "dense")
    experts = write_tiny(folder / "experts", **EXPERTS)
    overrides = [{}, {}, {"QUANTIZE": '"int8"'}]
    models = [
        f"{path} {json.dumps(F32 | each)}"
        for path, each in zip((dense, experts, dense), overrides, strict=True)
    ]
    stages = f"{dense} {json.dumps(F32 | STAGES)}"
    long = {"max_position_embeddings": 400}
    (states := folder / "states").mkdir()
    prompts = [
        f"{path} {json.dumps(F32)}"
        for path in (write_tiny(folder / "long", **long), folder_of("lfm2", states, **long))
    ]
    deployment = DeploymentProcesses(folder, "cpu:1", 2)
    try:
        # The workers of one island read the weights themselves; those of the other get them.
        deployment.worker("worker 0", 0, f"--checkpoint_root={folder}")
        deployment.worker("worker 1", 1)
        deployment.proxy()
        target = f"grpc://127.0.0.1:{deployment.proxy_port}"
        there = {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": target}
        islands, _ = answered(models, POOL, "", there)
        staged, logged = answered([stages], POOL, "", there)
        islands += staged + answered(prompts, LONG_POOL, "0", there)[0]
    finally:
        deployment.close()
    here, _ = answered([*models, models[0]], POOL, "", {"JAX_PLATFORMS": "cpu"})
    here += answered(prompts, LONG_POOL, "", {"JAX_PLATFORMS": "cpu"})[0]
    return {
        "here": dict(zip(KINDS, here, strict=True)),
        "islands": dict(zip(KINDS, islands, strict=True)),
        "logged": {"stages": logged},
    }


@pytest.mark.extended
@pytest.mark.timeout(1000)
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
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind", KINDS[: -len(MOVED)])
def test_sequences_are_preempted_and_pages_shared_on_islands_too(
    both: dict[str, dict[str, Any]], kind: str
) -> None:
    assert both["here"][kind]["preemptions"]
    for name in ("preemptions", "prefix_hits"):
        assert both["islands"][kind][name], name


@pytest.mark.extended
@pytest.mark.timeout(1000)
def test_the_workers_of_a_stage_read_its_weights_where_they_may(
    both: dict[str, dict[str, Any]],
) -> None:
    logged = both["logged"]["stages"]
    assert "weights pass through this process to island 1" in logged  # it has no roots
    assert "to island 0" not in logged


@pytest.mark.extended
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind", MOVED)
def test_pages_of_long_prompts_move_to_the_island_that_answers(
    both: dict[str, dict[str, Any]], kind: str
) -> None:
    """All nine that are asked alone; together, as many as there is room for on the way."""
    assert both["islands"][kind]["moved"] > 9
