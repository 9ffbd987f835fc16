"""jaxlib's own client against processes of all roles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.cell import free_ports

ROOT = Path(__file__).parents[4]
CLIENT = Path(__file__).parent / "proxy_client.py"
POOLED = 2  # threads; what nine clients and three islands left behind would be more
_START_S = 60.0  # under load; seconds without


class DeploymentProcesses:
    """A resource manager, workers and a proxy server on this machine."""

    def __init__(self, folder: Path, instance: str, islands: int) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.proxy_port, self._manager_port = free_ports(2)
        self.start(
            "manager",
            "resource_manager",
            f"--server_port={self._manager_port}",
            f"--instance_count={islands}",
            f"--instance_type={instance}",
        )
        self._manager = f"--resource_manager_address=127.0.0.1:{self._manager_port}"

    def start(self, name: str, role: str, *flags: str) -> None:
        log = (self._folder / f"{name}.log").open("ab")
        path = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
        environ = {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "model_server.pathways", f"--node_type={role}", *flags]
        self._processes[name] = subprocess.Popen(
            command, env={**os.environ, **environ}, stdout=log, stderr=log, cwd=ROOT
        )
        log.close()

    def worker(self, name: str, island: int, *flags: str) -> None:
        self.start(
            name,
            "worker",
            f"--server_port={free_ports(1)[0]}",
            self._manager,
            f"--island={island}",
            *flags,
        )

    def proxy(self, *flags: str) -> None:
        """Start the proxy server and wait until it serves."""
        port = f"--server_port={self.proxy_port}"
        self.start("proxy", "proxy_server", port, self._manager, *flags)
        self.wait_for("proxy", "proxy server of")

    def wait_for(self, name: str, text: str) -> None:
        for _ in range(round(_START_S / 0.05)):
            if text in self.log(name):
                return
            assert self._processes[name].poll() is None, self.log(name)
            time.sleep(0.05)
        raise AssertionError(f"{name} did not say {text!r}: {self.log(name)}")

    def wait_for_end(self, name: str) -> None:
        assert self._processes[name].wait(_START_S) != 0

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes.pop(name).wait(60)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def held(self, name: str) -> tuple[int, int]:
        """How many threads and open files a process has."""
        folder = Path(f"/proc/{self._processes[name].pid}")
        return len(list((folder / "task").iterdir())), len(list((folder / "fd").iterdir()))

    def settles(self, name: str, at_most: tuple[int, int]) -> bool:
        """Tell whether a process soon has no more threads and files than this, but for threads of
        pools, which start when several are busy at once."""
        threads, files = at_most
        for _ in range(1200):
            now_threads, now_files = self.held(name)
            if now_threads <= threads + POOLED and now_files <= files:
                return True
            time.sleep(0.05)
        return False

    def client(self, program: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(CLIENT), str(self.proxy_port), program],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(60)


def lines(client: subprocess.Popen[str]) -> Iterator[tuple[str, object]]:
    assert client.stdout is not None
    with client:
        for line in client.stdout:
            name, value = json.loads(line)
            yield name, value


@pytest.fixture
def islands(tmp_path: Path) -> Iterator[DeploymentProcesses]:
    made = DeploymentProcesses(tmp_path, "cpu:2", 2)
    yield made
    made.close()


def check_islands(told: dict[str, object]) -> None:
    assert told["devices"] == [[0, 0], [1, 0], [2, 1], [3, 1]]
    assert told["on island 0"] is told["on island 1"] is told["back"] is True
    assert told["on every device"] == [2, True]
    assert told["donated"] == [20.0] * 3
    assert "islands 0 and 1: run one per island" in str(told["over both"])


@pytest.mark.extended
def test_programs_run_on_two_islands_and_arrays_go_between_them(
    islands: DeploymentProcesses,
) -> None:
    for island in (0, 1):
        islands.worker(f"worker {island}", island)
    islands.proxy()
    check_islands(dict(lines(islands.client("islands"))))


@pytest.mark.extended
def test_an_island_is_lost_and_comes_back_in_the_same_client(islands: DeploymentProcesses) -> None:
    for island in (0, 1):
        islands.worker(f"worker {island}", island)
    islands.proxy()
    told: dict[str, object] = {}
    for name, value in lines(islands.client("loss")):
        told[name] = value
        if name == "there":
            islands.kill("worker 1")
        elif name == "here":
            islands.worker("worker 1 again", 1)
    assert told["there"] == told["again"] == [1.0] * 4
    assert str(told["lost"]).startswith("DATA_LOSS: island 1 was lost")
    assert told["here"] == [3.0] * 4
    assert str(told["old array"]).startswith("DATA_LOSS: island 1 was lost")
    assert told["copied"] == [1.0] * 4


@pytest.mark.nightly
def test_an_island_may_be_several_processes(islands: DeploymentProcesses) -> None:
    for host in (0, 1):
        flags = (f"--island_host={host}", "--island_hosts=2")
        islands.worker(f"worker 0.{host}", 0, *flags)
    islands.worker("worker 1", 1)
    islands.proxy()
    check_islands(dict(lines(islands.client("islands"))))


@pytest.mark.extended
def test_compiler_flags_of_a_worker_are_checked_when_it_starts(
    islands: DeploymentProcesses,
) -> None:
    islands.worker("worker 0", 0, "--xla_no_such_flag=1")
    islands.wait_for_end("worker 0")
    assert "the compiler does not take --xla_no_such_flag=1" in islands.log("worker 0")


@pytest.mark.extended
def test_flags_of_the_proxy_server_reach_the_compiler_of_every_program(
    islands: DeploymentProcesses,
) -> None:
    for island in (0, 1):
        islands.worker(f"worker {island}", island, "--xla_cpu_enable_fast_math=false")
    islands.proxy("--xla_no_such_flag=true")
    told = dict(lines(islands.client("refused")))
    assert "xla_no_such_flag" in str(told["refused"])


@pytest.mark.nightly
def test_a_program_is_compiled_once_where_there_is_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    made = DeploymentProcesses(tmp_path, "cpu:2", 2)
    try:
        for island in (0, 1):
            made.worker(f"worker {island}", island)
        made.proxy()
        check_islands(dict(lines(made.client("islands"))))
        kept = {path.name for path in (tmp_path / "cache").glob("*-cache")}
        assert kept
        check_islands(dict(lines(made.client("islands"))))
        assert {path.name for path in (tmp_path / "cache").glob("*-cache")} == kept
    finally:
        made.close()


@pytest.mark.nightly
@pytest.mark.timeout(400)  # it starts sixteen clients, which import jax
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="counts threads in /proc")
def test_clients_that_vanish_and_islands_that_return_leave_nothing_behind(
    islands: DeploymentProcesses,
) -> None:
    for island in (0, 1):
        islands.worker(f"worker {island}", island)
    islands.proxy()

    def vanish(count: int) -> None:
        clients = [islands.client("loss") for _ in range(count)]
        for client in clients:
            assert client.stdout is not None
            client.stdout.readline()
            client.kill()
            client.wait()
            client.stdout.close()

    def come_back() -> None:
        islands.kill("worker 1")
        islands.worker("worker 1", 1)
        for _ in range(20):
            if dict(lines(islands.client("islands"))).get("back"):
                return
        raise AssertionError("island 1 did not come back")

    vanish(3)
    come_back()
    before = {name: islands.held(name) for name in ("proxy", "worker 0", "manager")}
    for _ in range(3):
        vanish(3)
        come_back()
    for name, held in before.items():
        assert islands.settles(name, held), (name, held, islands.held(name))
