"""A client process as its parent sees it: the calls it makes, and what came of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.demo_model import ROOT
from tests.tools.chaos.child import WITH_PARENT


@dataclass
class Call:
    """One call of jax, in seconds of the monotonic clock."""

    name: str
    islands: tuple[int, ...]
    begun_s: float
    ended_s: float | None = None
    said: str = ""  # "right", or the error


class Hang(Exception):
    """A client that does not answer."""


class Ended(Exception):
    """A client whose process ended by itself."""


@dataclass
class ClientProcess:
    """Started at once; its calls are read by a thread."""

    name: str
    port: int  # of the proxy server
    seed: int
    folder: Path
    calls: list[Call] = field(default_factory=list[Call])
    arrays: int = 0  # that it holds, when it last said so

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._done: list[bool] = []
        self._commands = 0
        self._open: dict[int, Call] = {}
        environ = {
            "JAX_PLATFORMS": "proxy",
            "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{self.port}",
            "PYTHONPATH": str(ROOT),
        }
        self.log = self.folder / f"{self.name}.log"
        log = self.log.open("ab")
        self._process = subprocess.Popen(
            [
                *WITH_PARENT,
                sys.executable,
                "-m",
                "tests.tools.chaos.pathways.client",
                str(self.seed),
            ],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def tell(self, do: str, **more: Any) -> None:
        """Send a command; it begins when the one before has ended."""
        self._commands += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise Ended(self.name) from exc

    def wait(self, limit_s: float) -> bool:
        """Wait for the end of all commands; tell whether the last was right. Raises Hang, Ended."""
        self._until(lambda: len(self._done) >= self._commands, limit_s, "its commands")
        return not self._done or self._done[-1]

    def ask(self, do: str, limit_s: float, **more: Any) -> bool:
        self.tell(do, **more)
        return self.wait(limit_s)

    def until_begun(self, name: str, after: int, limit_s: float) -> Call | None:
        """Wait for a call of this name after so many others; None: the command ended without."""

        def found() -> Call | None:
            return next((call for call in self.calls[after:] if call.name == name), None)

        self._until(lambda: found() is not None or len(self._done) >= self._commands, limit_s, name)
        return found()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def _until(self, holds: Callable[[], bool], limit_s: float, what: str) -> None:
        deadline_s = time.monotonic() + limit_s
        with self._changed:
            while not holds():
                left_s = deadline_s - time.monotonic()
                if not self.alive:
                    raise Ended(self.name)
                if left_s <= 0:
                    last = self.calls[-1] if self.calls else None
                    raise Hang(f"{self.name} waits for {what}: its last call is {last}")
                self._changed.wait(min(left_s, 0.5))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            try:
                line = json.loads(text)
            except json.JSONDecodeError:  # cut off by its death
                continue
            with self._changed:
                self._take(line)
                self._changed.notify_all()

    def _take(self, line: dict[str, Any]) -> None:
        if "done" in line:
            self._done.append(line["right"])
            self.arrays = line["arrays"]
        elif "begun_s" in line:
            call = Call(line["name"], tuple(line["islands"]), line["begun_s"])
            self._open[line["call"]] = call
            self.calls.append(call)
        else:
            call = self._open.pop(line["call"])
            call.ended_s, call.said = line["ended_s"], line["said"]
