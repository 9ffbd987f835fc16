"""Hosts that are no replica are turned away by name, with real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo_model import ROOT
from tests.end_to_end.cell import free_ports

# Who is turned away is tested without processes too (tests/model_server/multihost).
pytestmark = [pytest.mark.timeout(300), pytest.mark.nightly]

TURNED_AWAY, LOST = 2, 75


class Hosts:
    """Processes with flags of their own each; ended with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_ports(1)[0]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, ordinal: int, *flags: str, count: int = 2, **how: str) -> None:
        """how: `cwd`, and variables of the environment."""
        cwd = how.pop("cwd", str(ROOT))
        hosts = ",".join(["127.0.0.1"] * count)
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [
                    *(sys.executable, "-m", "model_server", "--sax_cell=", "--metrics_port=-1"),
                    *("--port=0", f"--group_port={self._port}", f"--hosts={hosts}"),
                    *(f"--host_ordinal={ordinal}", *flags),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env={**os.environ, "JAX_PLATFORMS": "cpu", **how},
            )

    def ended(self, name: str) -> tuple[int, str]:
        """Its status and what it said."""
        status = self._processes[name].wait(120)
        return status, (self._folder / f"{name}.log").read_text()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def hosts(tmp_path: Path):
    running = Hosts(tmp_path)
    yield running
    running.close()


def test_hosts_that_do_not_fit_the_primary_are_turned_away_by_name(
    hosts: Hosts, tmp_path: Path
) -> None:
    hosts.start("primary", 0)
    hosts.start("miscounted", 1, count=3)
    status, said = hosts.ended("miscounted")
    assert status == TURNED_AWAY
    assert "host 1 (127.0.0.1) expects 3 hosts, the primary (127.0.0.1) expects 2" in said

    hosts.start("other flags", 1, "--slots=7")
    status, said = hosts.ended("other flags")
    assert status == TURNED_AWAY
    assert "--slots 7" in said

    hosts.start("second primary", 0)
    status, said = hosts.ended("second primary")
    assert status != 0
    assert "another primary may be running here" in said


def test_a_host_with_another_program_is_turned_away(hosts: Hosts, tmp_path: Path) -> None:
    for room in ("sax", "model_server"):
        shutil.copytree(ROOT / room, tmp_path / "other" / room)
    file = tmp_path / "other" / "sax" / "names.py"
    file.write_text(file.read_text() + "\n# one line more\n")
    hosts.start("primary", 0)
    hosts.start("other", 1, cwd=str(tmp_path / "other"))
    status, said = hosts.ended("other")
    assert status == TURNED_AWAY
    assert "runs sax" in said
    assert "start every host from the same image" in said


def test_hosts_with_different_devices_are_no_replica(hosts: Hosts) -> None:
    hosts.start("primary", 0)
    hosts.start("larger", 1, JAX_NUM_CPU_DEVICES="2", NPROC="16")
    for name, allowed in (("primary", {TURNED_AWAY}), ("larger", {TURNED_AWAY, LOST})):
        status, said = hosts.ended(name)
        assert status in allowed, said
        assert "host 1 (127.0.0.1) has 2 devices (cpu), the primary (127.0.0.1) has 1 (cpu)" in said
