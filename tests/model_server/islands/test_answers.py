"""A model on islands answers as one on this machine's own devices: dense, experts, quantised, in
stages, and with prompts from another island.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.test_recurrent_models import folder_of
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses

ROOT = Path(__file__).parents[3]
MOVED = ("prompts", "states")  # the first island computes the prompts and the second one answers
SHARED = ("experts", "quantised", "stages")  # both islands answer, as with "dense"
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


class Both(NamedTuple):
    """Answers by kind of model: of this machine's devices and of two islands."""

    here: dict[str, Any]
    islands: dict[str, Any]
    logged: dict[str, str]  # by the clients of the islands

    def check(self, kind: str) -> None:
        for how in ("together", "alone"):
            here, islands = self.here[kind][how], self.islands[kind][how]
            tokens = [each["tokens"] for each in here]
            assert [each["tokens"] for each in islands] == tokens, (kind, how)
            for found, wanted in zip(islands, here, strict=True):
                # Activations are quantised, too: rounded otherwise in another batch.
                most = 0.05 if kind == "quantised" else 1e-4
                np.testing.assert_allclose(
                    found["numbers"], wanted["numbers"], rtol=most, atol=most, err_msg=kind
                )

    def check_shared(self, kind: str) -> None:
        """Sequences are preempted and pages shared on islands, too."""
        assert self.here[kind]["preemptions"], kind
        for name in ("preemptions", "prefix_hits"):
            assert self.islands[kind][name], (kind, name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("islands")


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[DeploymentProcesses]:
    """The workers of one island read the weights themselves; those of the other get them."""
    made = DeploymentProcesses(folder, "cpu:1", 2)
    try:
        made.worker("worker 0", 0, f"--checkpoint_root={folder}")
        made.worker("worker 1", 1)
        made.proxy()
        yield made
    finally:
        made.close()


def asked(deployment: DeploymentProcesses, models: dict[str, str], *, moved: bool = False) -> Both:
    """Ask these models, by their kinds, on the islands and here."""
    pool = LONG_POOL if moved else POOL
    target = f"grpc://127.0.0.1:{deployment.proxy_port}"
    there = {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": target}
    found, logged = answered([*models.values()], pool, "0" if moved else "", there)
    alone = [text.replace(json.dumps(F32 | STAGES), json.dumps(F32)) for text in models.values()]
    here, _ = answered(alone, pool, "", {"JAX_PLATFORMS": "cpu"})
    return Both(
        dict(zip(models, here, strict=True)),
        dict(zip(models, found, strict=True)),
        dict.fromkeys(models, logged),
    )


def model(path: Path, **overrides: str) -> str:
    return f"{path} {json.dumps(F32 | overrides)}"


@pytest.mark.timeout(1000)
def test_answers_are_those_of_this_machine(deployment: DeploymentProcesses, folder: Path) -> None:
    both = asked(deployment, {"dense": model(write_tiny(folder / "dense"))})
    both.check("dense")
    both.check_shared("dense")


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_answers_of_experts_small_numbers_and_stages_are_too(
    deployment: DeploymentProcesses, folder: Path
) -> None:
    plain = write_tiny(folder / "plain")
    experts = model(write_tiny(folder / "experts", **EXPERTS))
    both = asked(deployment, {"experts": experts, "quantised": model(plain, QUANTIZE='"int8"')})
    stages = asked(deployment, {"stages": model(plain, **STAGES)})
    for kind, found in zip(SHARED, (both, both, stages), strict=True):
        found.check(kind)
        found.check_shared(kind)
    # The workers of a stage read its weights where they may.
    assert "weights pass through this process to island 1" in stages.logged["stages"]  # no roots
    assert "to island 0" not in stages.logged["stages"]


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_pages_of_long_prompts_move_to_the_island_that_answers(
    deployment: DeploymentProcesses, folder: Path
) -> None:
    """All nine that are asked alone; together, as many as there is room for on the way."""
    long = {"max_position_embeddings": 400}
    (states := folder / "states").mkdir()
    folders = write_tiny(folder / "long", **long), folder_of("lfm2", states, **long)
    both = asked(deployment, dict(zip(MOVED, map(model, folders), strict=True)), moved=True)
    for kind in MOVED:
        both.check(kind)
        assert both.islands[kind]["moved"] > 9, kind
