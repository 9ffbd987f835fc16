"""The hosts of one replica as real processes: start them, kill, stop and go on, always clean up.

Each host is `python -m model_server` with the same flags and a log of its own; inside a namespace
where it is given one, so that it can be cut off. Knows nothing of models: publish through the cell.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sax.client import Client
from tests.demo_model import COMPILE_CACHE, ROOT
from tests.end_to_end.cell import free_ports
from tests.hosts.network import Host, Network

_READY_S = 120.0
_LAST_LINES = 20


class Gang:
    """The hosts 0 (the primary) to count - 1 of one replica.

    With a network each host runs in a namespace of it, in order; the admin server must then listen
    where they reach it, at the network's gateway.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        count: int = 1,
        admin: str = "",
        network: Network | None = None,
        own_flags: Mapping[int, Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
        own_environment: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        self.count = count
        self._folder = folder
        self._flags = flags
        self._own_flags = own_flags or {}
        self._admin = admin
        self._network = network
        self._environment = {**os.environ, **(environment or {})}
        self._own_environment = own_environment or {}
        self._inside: Sequence[Host] = network.hosts[:count] if network is not None else ()
        self.names = [host.address for host in self._inside] or ["127.0.0.1"] * count
        self.port, self.group_port = free_ports(2)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        # Held open while we live: hosts end when it closes (see sax.cli.local.leash).
        self._leash, self._leash_writer = os.pipe()

    def __enter__(self) -> Gang:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Where the primary answers, as it tells its admin server."""
        return f"{self.names[0]}:{self.port}"

    # --- processes ---

    def start(self, *hosts: int) -> None:
        """Start these, or all, with the flags that they always have."""
        for host in hosts or range(self.count):
            if self.alive(host):
                raise AssertionError(f"host {host} runs already")
            self._start(host)

    def kill(self, host: int) -> None:
        """kill -9, and wait for the body."""
        self._processes[host].kill()
        self._processes[host].wait(60)

    def pause(self, host: int) -> None:
        """SIGSTOP: it is there and does nothing."""
        self._processes[host].send_signal(signal.SIGSTOP)

    def resume(self, host: int) -> None:
        self._processes[host].send_signal(signal.SIGCONT)

    def cut(self, host: int) -> None:
        """Off the network; only where it has one."""
        self._wire().cut(self._inside[host])

    def heal(self, host: int) -> None:
        self._wire().heal(self._inside[host])

    def terminate(self, host: int) -> None:
        """SIGTERM: it may drain."""
        self._processes[host].send_signal(signal.SIGTERM)

    def alive(self, host: int) -> bool:
        return host in self._processes and self._processes[host].poll() is None

    def pid(self, host: int) -> int:
        return self._processes[host].pid

    def exit_code(self, host: int, within_s: float = 60.0) -> int:
        """Wait until it has ended; a signal counts below 0."""
        try:
            return self._processes[host].wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"host {host} has not ended within {within_s:g} s\n{self.tails()}"
            ) from None

    def close(self) -> None:
        """End every process, gently first; afterwards none is left."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for end in (self._leash, self._leash_writer):
            if end >= 0:
                os.close(end)
        self._leash = self._leash_writer = -1

    # --- what they say ---

    def log_path(self, host: int) -> Path:
        return self._folder / f"host-{host}.log"

    def logs(self, host: int) -> str:
        """All it wrote, of earlier lives as well."""
        path = self.log_path(host)
        return path.read_text(errors="replace") if path.exists() else ""

    def tails(self) -> str:
        """The end of every log, for whoever must find out what went wrong."""
        lines = {host: self.logs(host).splitlines()[-_LAST_LINES:] for host in range(self.count)}
        return "\n".join(f"--- host {host}\n" + "\n".join(tail) for host, tail in lines.items())

    # --- waiting ---

    def wait_until_serving(self, within_s: float = _READY_S) -> None:
        """The primary answers its health check: all hosts have found each other."""
        self.eventually(self.is_serving, "the primary serves", within_s)

    def wait_until_joined(self, within_s: float = _READY_S) -> None:
        """The admin server lists the primary."""
        with Client(admin=self._admin) as client:

            def joined() -> bool:
                return any(server.info.address == self.address for server in client.servers())

            self.eventually(joined, f"{self.address} has joined {self._admin}", within_s)

    def eventually(self, look: Callable[[], bool], what: str, within_s: float) -> None:
        """Until it is so. Fails with the logs, at once when a host has died."""
        deadline = time.monotonic() + within_s
        while not look():
            dead = [host for host in self._processes if not self.alive(host)]
            assert not dead, f"hosts {dead} died while waiting: {what}\n{self.tails()}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.tails()}"
            time.sleep(0.1)

    def is_serving(self) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            try:
                reply = check(health_pb2.HealthCheckRequest(), timeout=2)
            except grpc.RpcError:
                return False
        return reply.status == health_pb2.HealthCheckResponse.SERVING

    def _start(self, host: int) -> None:
        path = self.log_path(host)
        path.parent.mkdir(parents=True, exist_ok=True)
        inside = self._network.inside(self._inside[host]) if self._network is not None else ()
        with path.open("ab") as log:
            self._processes[host] = subprocess.Popen(
                [
                    *inside,
                    sys.executable,
                    "-m",
                    "sax.cli.local.leash",
                    "model_server",
                    *self._all(host),
                ],
                stdin=self._leash,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**self._environment, **self._own_environment.get(host, {})},
                start_new_session=True,
            )

    def _all(self, host: int) -> list[str]:
        """Every flag of one host."""
        flags = [f"--host={self.names[host]}", f"--port={self.port if host == 0 else 0}"]
        flags += ["--metrics_port=-1", f"--jax_cache_dir={COMPILE_CACHE}"]
        flags += [f"--admin={self._admin}"] if self._admin else ["--sax_cell="]
        if self.count > 1:
            flags += [f"--hosts={','.join(self.names)}", f"--host_ordinal={host}"]
            flags += [f"--group_port={self.group_port}"]
        return [*flags, *self._flags, *self._own_flags.get(host, ())]

    def _wire(self) -> Network:
        if self._network is None:
            raise AssertionError("these hosts have no network of their own: give the gang one")
        return self._network
