"""A process that is told by lines what to measure, and that stands still in between."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from tests.demo_model import ROOT

_MOMENT_S = 0.05


class ToldProcess:
    """Runs a module that prints "ready", and then a line for each that it reads."""

    def __init__(self, module: str, *arguments: str, **environ: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        told = self.answer()
        assert told == b"ready\n", f"{self._process.args} said {told!r}"

    def ask(self, line: str) -> bytes:
        self.tell(line)
        return self.answer()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def answer(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Let it use next to no processor: a moment a second, so that it is not given up."""
        done = threading.Event()

        def hold() -> None:
            while not done.is_set():
                self._process.send_signal(signal.SIGSTOP)
                done.wait(1 - _MOMENT_S)
                self._process.send_signal(signal.SIGCONT)
                done.wait(_MOMENT_S)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
