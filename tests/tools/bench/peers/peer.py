"""Interfaces of a peer and of one that runs, and the processes that stand behind both."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.tools.bench.peers.installation import PEERS
from tests.tools.bench.peers.weights import Weights
from tests.tools.bench.streams import Burst, counted_burst

READY_S = 300.0
_LEFT = 2**30  # bytes of memory that no peer may take
THREADS = 2  # of every peer


def available_memory() -> int:
    """Bytes that Linux says could be used now."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(found) * 1024


class Running(Protocol):
    """A peer that has loaded the weights and answers."""

    def answer(self, prompts: Sequence[str], tokens: int) -> Burst:
        """One answer of `tokens` tokens per prompt, greedy, all at once."""
        ...

    def pids(self) -> Sequence[int]:
        """Its processes; their children are found from them."""
        ...

    def close(self) -> None: ...


class Peer(Protocol):
    """One server or engine in the race."""

    @property
    def name(self) -> str: ...
    @property
    def way(self) -> str:
        """How requests reach it."""
        ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Arguments of `pip install`; nothing for sax."""
        ...

    @property
    def unwanted(self) -> tuple[str, ...]:
        """Packages to be removed after that."""
        ...

    def refusal(self, weights: Weights) -> str:
        """Return why it would not compute with these numbers; "" if it does."""
        ...

    def file(self, weights: Weights) -> Path:
        """Return which of the files it reads."""
        ...

    def start(self, weights: Weights, streams: int) -> Running:
        """Start it for so many streams and wait until it is ready."""
        ...


@dataclass
class Process:
    """A child in a session of its own, with a log."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    piped: bool = False  # we talk to it over stdin and stdout

    def __post_init__(self) -> None:
        pipe = subprocess.PIPE if self.piped else None
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self.child = subprocess.Popen(
                self.command,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                env={**os.environ, **self.environ},
                start_new_session=True,
                text=True,
            )
        self._limit_memory()

    @property
    def log_path(self) -> Path:
        return PEERS / "logs" / f"{self.name}.log"

    def _limit_memory(self) -> None:
        """One that needs more than there is ends, and nothing else does."""
        _, hard = resource.prlimit(self.child.pid, resource.RLIMIT_DATA)
        if hard == resource.RLIM_INFINITY:
            limits = (available_memory() - _LEFT, hard)
            resource.prlimit(self.child.pid, resource.RLIMIT_DATA, limits)

    def check(self) -> None:
        """Raise RuntimeError, with the end of the log, once the child is dead."""
        if self.child.poll() is not None:
            tail = self.log_path.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} ended with {self.child.returncode}:\n{tail}")

    def close(self) -> None:
        """End the whole session, gently first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.child.pid, number)
                self.child.wait(30)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


class HttpServer:
    """A process that serves OpenAI's /v1/completions."""

    def __init__(self, process: Process, url: str, model: str, health: str = "/health") -> None:
        self._process, self._url, self._model = process, url, model
        try:
            self._wait_until_ready(health)
        except BaseException:
            self.close()
            raise

    def answer(self, prompts: Sequence[str], tokens: int) -> Burst:
        return asyncio.run(counted_burst(self._url, self._model, prompts, tokens))

    def pids(self) -> Sequence[int]:
        return (self._process.child.pid,)

    def close(self) -> None:
        self._process.close()

    def _wait_until_ready(self, health: str) -> None:
        deadline_s = time.monotonic() + READY_S
        while not self._is_ready(health):
            self._process.check()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._process.name} was not ready within {READY_S} s")
            time.sleep(0.05)

    def _is_ready(self, health: str) -> bool:
        try:
            return httpx.get(self._url + health, trust_env=False).is_success
        except httpx.TransportError:
            return False


class Driver:
    """A script of `drivers/` in the peer's Python: a line of JSON for each burst, one back.

    It writes one line when the model is loaded, before it reads the first.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        try:
            self._line()
        except BaseException:
            self.close()
            raise

    def answer(self, prompts: Sequence[str], tokens: int) -> Burst:
        assert self._process.child.stdin is not None
        self._process.child.stdin.write(json.dumps([list(prompts), tokens]) + "\n")
        self._process.child.stdin.flush()
        said = self._line()
        return Burst(said["tokens"], said["wall_s"], tuple(said["first_token_s"]))

    def pids(self) -> Sequence[int]:
        return (self._process.child.pid,)

    def close(self) -> None:
        self._process.close()

    def _line(self) -> dict[str, Any]:
        assert self._process.child.stdout is not None
        line = self._process.child.stdout.readline()
        if not line:
            self._process.child.wait(30)
            self._process.check()
        said: dict[str, Any] = json.loads(line)
        return said
