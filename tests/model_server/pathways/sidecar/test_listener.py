"""jax's own colocated Python, unmodified, on islands of our workers with sidecars."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cell import free_ports
from tests.model_server.pathways.roles.test_deployment import ROOT, DeploymentProcesses

CLIENT = Path(__file__).parent / "functions_client.py"
NUMBERS = [float(each) for each in range(8)]
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cloudpickle") is None,
    reason="cloudpickle is not installed: pip install '.[pathways]'",
)


class DeploymentWithSidecars(DeploymentProcesses):
    """Island 0 is one process of two devices, island 1 two processes of one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "cpu:2", 2)
        self._ports: dict[str, int] = {}

    def all(self) -> None:
        self.worker_with("0", 0)
        for host in (0, 1):
            self.worker_with(f"1.{host}", 1, f"--island_host={host}", "--island_hosts=2")
        self.proxy("--sidecar_name=external")

    def worker_with(self, name: str, island: int, *flags: str) -> None:
        self._ports[name] = free_ports(1)[0]
        self.sidecar(name)
        address = f"--sidecar_address=127.0.0.1:{self._ports[name]}"
        self.worker(f"worker {name}", island, address, *flags)

    def sidecar(self, name: str) -> None:
        self.start(
            f"sidecar {name}", "sidecar", "--colocated_python", f"--server_port={self._ports[name]}"
        )

    def told(self, program: str) -> dict[str, Any]:
        """Return what a client prints."""
        with self.printing(program) as client:
            assert client.stdout is not None
            return dict(json.loads(line) for line in client.stdout)

    def printing(self, program: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(CLIENT), str(self.proxy_port), program],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeploymentWithSidecars]:
    made = DeploymentWithSidecars(tmp_path_factory.mktemp("sidecars"))
    try:
        made.all()
        yield made
    finally:
        made.close()


@pytest.mark.extended
def test_functions_run_beside_the_devices_of_their_arguments(
    deployment: DeploymentWithSidecars,
) -> None:
    told = deployment.told("functions")
    for island in (0, 1):
        assert told[f"halves {island}"] == [each / 2 for each in NUMBERS]
        assert told[f"again {island}"] == [each * 2 for each in NUMBERS]
    pids = {name: deployment.pid(f"sidecar {name}") for name in ("0", "1.0", "1.1")}
    assert told["processes 0"] == [pids["0"]]
    assert told["processes 1"] == sorted([pids["1.0"], pids["1.1"]])


@pytest.mark.nightly
def test_functions_with_known_results_are_not_waited_for(
    deployment: DeploymentWithSidecars,
) -> None:
    told = deployment.told("specialised")
    assert told["plus five"] == [each + 5 for each in NUMBERS]
    assert told["before"] == told["after"] == [each + 1 for each in NUMBERS]


@pytest.mark.nightly
def test_objects_stay_where_their_methods_run(deployment: DeploymentWithSidecars) -> None:
    assert deployment.told("objects")["counted"] == [[12, 12], [14, 14], [16, 16]]


@pytest.mark.extended
def test_a_function_that_ends_its_process_takes_no_island_with_it(
    deployment: DeploymentWithSidecars,
) -> None:
    told: dict[str, Any] = {}
    with deployment.printing("failures") as client:
        assert client.stdout is not None
        for line in client.stdout:
            name, value = json.loads(line)
            told[name] = value
            if name == "island":
                deployment.wait_for_end("sidecar 0")
                deployment.sidecar("0")
    assert told["wrong"].startswith("UNKNOWN: wrong")
    assert "beside island 0: ValueError: no such shard" in told["wrong"]
    assert told["dying"].startswith("UNAVAILABLE: dying")
    assert "has ended" in told["dying"]
    assert told["island"] == [each + 1 for each in NUMBERS]
    assert told["fine"] == NUMBERS


@pytest.mark.nightly
def test_functions_are_refused_unless_they_were_asked_for(tmp_path: Path) -> None:
    made = DeploymentWithSidecars(tmp_path)
    try:
        for island in (0, 1):
            made.worker(f"worker {island}", island)
        made.proxy()
        told = made.told("refused")
        assert "start the proxy server with --sidecar_name=external" in told["refused"]
    finally:
        made.close()
