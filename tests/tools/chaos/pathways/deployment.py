"""A resource manager, a proxy server and two workers: real processes on free ports."""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.demo_model import ROOT
from tests.processes import free_ports
from tests.tools.chaos.child import Child

ISLANDS = 2
DEVICES = 2  # of an island
_START_S = 120.0
# Large arrays go back to the system when they are freed: by itself, the C library comes to keep
# some for each thread, and a process that leaks cannot be told from one that does not.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


class Deployment:
    """Children by role: "manager", "proxy", "worker 0", "worker 1"."""

    def __init__(self, folder: Path) -> None:
        self.manager_port, self.status_port, self.proxy_port, *workers = free_ports(3 + ISLANDS)
        manager = f"--resource_manager_address=127.0.0.1:{self.manager_port}"
        flags = {
            "manager": [
                "--node_type=resource_manager",
                f"--server_port={self.manager_port}",
                f"--status_port={self.status_port}",
                f"--instance_count={ISLANDS}",
                f"--instance_type=cpu:{DEVICES}",
            ],
            "proxy": ["--node_type=proxy_server", f"--server_port={self.proxy_port}", manager],
        }
        for island, port in enumerate(workers):
            flags[f"worker {island}"] = [
                "--node_type=worker",
                f"--server_port={port}",
                manager,
                f"--island={island}",
            ]
        environ = {
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "NPROC": "16",
            **_MALLOC,
        }
        program = [sys.executable, "-m", "model_server.pathways"]
        self.children = {
            role: Child(role, [*program, *words], folder, environ) for role, words in flags.items()
        }

    def status(self) -> dict[str, Any]:
        """Return what the status page tells. Raises OSError if there is none."""
        url = f"http://127.0.0.1:{self.status_port}/status.json"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=5) as reply:
            return json.load(reply)

    def until_up(self) -> None:
        """Wait until all islands are up. Raises AssertionError."""
        deadline_s = time.monotonic() + _START_S
        while not self._up():
            assert time.monotonic() < deadline_s, "the islands did not come up"
            time.sleep(0.05)

    def _up(self) -> bool:
        for child in self.children.values():
            child.check()
        try:
            return all(line["up"] for line in self.status()["islands"])
        except (OSError, http.client.HTTPException):  # it has only begun, or ends
            return False


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Start everything, and end it whatever happens."""
    made = Deployment(folder)
    try:
        for child in made.children.values():
            child.start()
        made.until_up()
        yield made
    finally:
        for child in made.children.values():
            child.end()
