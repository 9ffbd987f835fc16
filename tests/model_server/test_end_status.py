"""How a server ends that was told to."""

import os
import signal
import subprocess
import sys

import pytest

from model_server.config import drained_status
from tests.demo_model import ROOT
from tests.end_to_end.cell import free_ports


def test_in_a_pod_of_a_job_a_drained_server_is_not_done() -> None:
    assert drained_status({}) == drained_status({"JOB_COMPLETION_INDEX": ""}) == 0
    assert drained_status({"JOB_COMPLETION_INDEX": "0"}) == 143


@pytest.mark.extended
@pytest.mark.parametrize(
    ("index", "status"), [pytest.param("", 0, marks=pytest.mark.nightly), ("3", 143)]
)
def test_the_process_ends_so(index: str, status: int) -> None:
    (port,) = free_ports(1)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JOB_COMPLETION_INDEX": index}
    server = subprocess.Popen(
        [sys.executable, "-m", "model_server", f"--port={port}", "--metrics_port=-1"]
        + ["--sax_cell="],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    for line in server.stderr:
        if "listening on" in line:
            break
    server.send_signal(signal.SIGTERM)
    server.stderr.read()
    server.stderr.close()
    assert server.wait(60) == status


@pytest.mark.extended
@pytest.mark.parametrize(
    ("platform", "told"),
    [
        ("cuda", "jax has no devices here"),
        pytest.param("tpu", "jax has no devices here", marks=pytest.mark.nightly),
        ("proxy", "needs the address of a proxy server: set JAX_BACKEND_TARGET"),
    ],
)
def test_a_platform_that_jax_cannot_use_is_told_in_one_line(platform: str, told: str) -> None:
    environment = {**os.environ, "JAX_PLATFORMS": platform}
    environment.pop("JAX_BACKEND_TARGET", None)
    done = subprocess.run(
        [sys.executable, "-m", "model_server", "--port=0", "--metrics_port=-1", "--sax_cell="],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
