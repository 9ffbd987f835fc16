"""The first program of Google's tutorial, unmodified, against our proxy server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from model_server.engine.islands.island_runner import is_loss
from tests.model_server.pathways.roles.test_deployment import DeploymentProcesses

PROGRAM = "import jax, pathwaysutils; pathwaysutils.initialize(); print(jax.devices())"
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("pathwaysutils") is None,
    reason="pathwaysutils is not installed: pip install '.[pathways]'",
)


@pytest.fixture
def islands(tmp_path: Path) -> Iterator[DeploymentProcesses]:
    made = DeploymentProcesses(tmp_path, "cpu:2", 2)
    yield made
    made.close()


@needs_package
def test_the_tutorials_program_prints_the_devices_of_every_island(
    islands: DeploymentProcesses,
) -> None:
    for island in (0, 1):
        islands.worker(f"worker {island}", island)
    islands.proxy()
    environ = {
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{islands.proxy_port}",
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == (
        "[CPU(0, island 0), CPU(1, island 0), CPU(2, island 1), CPU(3, island 1)]"
    )


@needs_package
@pytest.mark.parametrize("kind", ["DATA_LOSS", "DEADLINE_EXCEEDED", "NOT_FOUND"])
def test_what_its_elastic_module_takes_for_a_loss_is_one_here(kind: str) -> None:
    from pathwaysutils.elastic import elastic  # pyright: ignore

    error = jax.errors.JaxRuntimeError(f"{kind}: slice 1 is down")
    assert elastic.is_error_due_to_slice_down(error)  # pyright: ignore
    assert is_loss(error)
