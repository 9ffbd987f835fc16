"""Pods as processes of this machine, each in a network namespace with its own address and name.

What a kubelet would do with a pod of our images, as far as a process can tell: entry point, flags,
environment, host name, names of the other pods, empty folders. The devices are a CPU's, and the
machine's own variables say so; nothing else comes from here. Needs root (`tests.hosts.network`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.demo_model import ROOT
from tests.hosts.network import Host, Network
from tests.k8s.pods import Pod

_ENTRY_POINT = ("python", "-m", "sax.container")
_KEPT = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
# A host name of its own, and folders of its own where the pod mounts empty ones.
_INSIDE = """
hostname "$1"
for folder in $2; do
  mkdir -p "$folder" && mount -t tmpfs tmpfs "$folder"
done
shift 2
exec "$@"
"""
_LAST_LINES = 30


def entry_point(image: str) -> tuple[str, ...]:
    """What an image starts with; the flags of the container come after."""
    name = image.rpartition("/")[2].partition(":")[0]
    return _ENTRY_POINT if name == "sax-control" else (*_ENTRY_POINT, "model_server")


def addresses(network: Network, pods: Sequence[Pod]) -> dict[str, Host]:
    """A host of the network for each pod, by the pod's name."""
    return {pod.name: host for pod, host in zip(pods, network.hosts, strict=True)}


class LocalCluster:
    """Start the pods, look at them, end them all."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        hosts: Mapping[str, Host],
        environment: Mapping[str, str],
        flags: Mapping[str, Sequence[str]],
    ) -> None:
        """`environment` is the machine's, under the pods' own; `flags` by image go last."""
        self._folder = folder
        self._network = network
        self._hosts = hosts
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._environment = {**kept, "PYTHONPATH": str(ROOT), **environment}
        self._flags = flags
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, pods: Sequence[Pod]) -> None:
        """All at once, as a cluster would. The names of those with a subdomain are in the DNS."""
        self._network.name(
            {
                name: self._hosts[pod.name].address
                for pod in pods
                for name in (pod.hostname, f"{pod.hostname}.{pod.subdomain}")
                if pod.subdomain or name == pod.hostname
            }
        )
        for pod in pods:
            self._start(pod)

    def address(self, pod: str) -> str:
        return self._hosts[pod].address

    def log(self, pod: str) -> str:
        """All that it wrote."""
        return (self._folder / f"{pod}.log").read_text(errors="replace")

    def alive(self) -> list[str]:
        """Pods whose process has not ended."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def kill(self, pod: str) -> None:
        """kill -9, and wait for the body."""
        self._processes[pod].kill()
        self._processes[pod].wait(30)

    def forget(self, pod: str) -> None:
        """One that has ended, and was meant to."""
        del self._processes[pod]

    def stop(self, within_s: float = 120.0) -> dict[str, int]:
        """SIGTERM to all that live; the exit status of each, below 0 for a signal."""
        living = {name: p for name, p in self._processes.items() if p.poll() is None}
        for process in living.values():
            process.send_signal(signal.SIGTERM)
        self.wait(within_s)
        return {name: process.returncode for name, process in living.items()}

    def wait(self, within_s: float) -> dict[str, int]:
        """Until all have ended; the exit status of each. Raises TimeoutExpired."""
        deadline = time.monotonic() + within_s
        return {
            name: process.wait(max(1.0, deadline - time.monotonic()))
            for name, process in self._processes.items()
        }

    def close(self) -> None:
        """Nothing is left afterwards."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def eventually(self, look: Callable[[], bool], what: str, within_s: float) -> None:
        """Until it is so. Fails with the logs, at once when a pod has died."""
        deadline = time.monotonic() + within_s
        while not look():
            dead = sorted(self._processes.keys() - set(self.alive()))
            assert not dead, f"{dead} ended while waiting: {what}\n{self._tails(dead)}"
            late = f"not within {within_s:g} s: {what}\n{self._tails(list(self._processes))}"
            assert time.monotonic() < deadline, late
            time.sleep(1)

    def _start(self, pod: Pod) -> None:
        (container,) = pod.containers
        command = [
            sys.executable if word == "python" else word
            for word in container.command or entry_point(container.image)
        ]
        name = container.image.rpartition("/")[2].partition(":")[0]
        mounts = pod.spec["containers"][0].get("volumeMounts", ())
        empty = " ".join(m["mountPath"] for m in mounts if m["mountPath"] != "/tmp")
        inside = (*self._network.inside(self._hosts[pod.name]), "unshare", "--uts")
        with (self._folder / f"{pod.name}.log").open("wb") as log:
            self._processes[pod.name] = subprocess.Popen(
                [*inside, "sh", "-ec", _INSIDE, "sh", pod.hostname, empty]
                + [*command, *container.args, *self._flags.get(name, ())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={**self._environment, **container.env},
            )

    def _tails(self, pods: Sequence[str]) -> str:
        lines = {pod: self.log(pod).splitlines()[-_LAST_LINES:] for pod in pods}
        return "\n".join(f"--- {pod}\n" + "\n".join(tail) for pod, tail in lines.items())
