"""Weights that an island's workers read: the same bits, and none through the proxy server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses

ROOT = Path(__file__).parents[3]
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
FORMS = [{}, {"DTYPE": '"float32"'}, {"QUANTIZE": '"int8"'}, {"QUANTIZE": '"int4"'}]


def asked(
    deployment: DeploymentProcesses, models: list[str], **environ: str
) -> list[dict[str, Any]]:
    """Return what a client prints of each model on each island."""
    target = f"grpc://127.0.0.1:{deployment.proxy_port}"
    environ = {"JAX_PLATFORMS": "proxy", "JAX_BACKEND_TARGET": target, **environ}
    done = subprocess.run(
        [sys.executable, "-m", "tests.model_server.islands.weights", *models],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=200,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "roots").mkdir()
    write_tiny(folder / "roots" / "dense")
    write_tiny(folder / "roots" / "experts", **EXPERTS)
    write_tiny(folder / "roots" / "torn")
    write_tiny(folder / "elsewhere")
    return folder


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[DeploymentProcesses]:
    """Island 0 is one process of two devices, island 1 two processes of one."""
    made = DeploymentProcesses(folder, "cpu:2", 2)
    root = f"--checkpoint_root={folder / 'roots'}"
    try:
        made.worker("worker 0", 0, root)
        for host in (0, 1):
            made.worker(f"worker 1.{host}", 1, root, f"--island_host={host}", "--island_hosts=2")
        made.proxy()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def found(deployment: DeploymentProcesses, folder: Path) -> list[dict[str, Any]]:
    """What one client prints of a dense model in each form, and of one that is elsewhere."""
    return asked(deployment, [*in_each_form(folder / "roots" / "dense"), f"{folder / 'elsewhere'}"])


def in_each_form(model: Path) -> list[str]:
    return [f"{model} {json.dumps(form)}" for form in FORMS]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_workers_read_the_very_arrays_that_the_controller_would(
    found: list[dict[str, Any]],
) -> None:
    check_read(found[: 2 * len(FORMS)])


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_workers_read_arrays_of_experts(deployment: DeploymentProcesses, folder: Path) -> None:
    check_read(asked(deployment, in_each_form(folder / "roots" / "experts")))


def check_read(models: list[dict[str, Any]]) -> None:
    """Of each model in each form on each of the two islands."""
    assert len(models) == 2 * len(FORMS)
    for found in models:
        assert found["arrays"] > 10, found
        assert found["differ"] == [], found
        assert found["steps"] >= 3, found  # several questions, and progress between them


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_bytes_of_weights_do_not_pass_through_the_proxy_server(
    deployment: DeploymentProcesses, folder: Path
) -> None:
    dense = folder / "roots" / "dense"
    nothing_passed = "and 0 B of host buffers\n"
    assert nothing_passed not in deployment.log("proxy")
    for found in asked(deployment, [f"{dense}"], COMPARE="no"):
        assert found["arrays"] > 10, found
    deployment.wait_for("proxy", nothing_passed)  # told when the client is gone


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_checkpoint_elsewhere_is_left_to_the_controller_which_says_so(
    found: list[dict[str, Any]], folder: Path
) -> None:
    elsewhere = found[2 * len(FORMS) :]
    assert len(elsewhere) == 2
    for each in elsewhere:
        assert each["arrays"] == 0
        (said,) = each["said"]
        assert f"to island {each['island']}" in said
        assert f"{folder / 'elsewhere'} is not below --checkpoint_root" in said


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_torn_checkpoint_fails_the_load_and_names_file_and_island(
    deployment: DeploymentProcesses, folder: Path
) -> None:
    torn = folder / "roots" / "torn"
    found, *_ = asked(deployment, [f"{torn}"], TEAR="yes")
    assert found["error"].startswith("CheckpointError: island 0: ")
    assert str(torn / "model.safetensors") in found["error"]
