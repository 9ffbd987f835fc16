"""One process of the cell: started, killed, paused, started again, and ended whatever happens.

What it writes goes to a log of its own. Knows nothing of what it runs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.demo_model import ROOT

# Ends a child even if its parent is killed before it can do so. Linux alone has it.
_SETPRIV = shutil.which("setpriv")
WITH_PARENT = (_SETPRIV, "--pdeathsig", "KILL") if _SETPRIV else ()
_TAIL = 25  # lines


class Child:
    """A command that may run, be stopped, or be dead."""

    def __init__(
        self, name: str, command: Sequence[str], folder: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.kills = self.pauses = 0
        self._command = command
        # Nothing that this shell says of other cells.
        ours = {name: text for name, text in os.environ.items() if not name.startswith("SAX_")}
        self._env = {**ours, **env}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        """Again, if it ended; its log goes on."""
        assert not self.alive, f"{self.name} runs already"
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*WITH_PARENT, *self._command], cwd=ROOT, env=self._env, stdout=out, stderr=out
            )

    def kill(self) -> None:
        """kill -9; nothing is left of it on return."""
        self.kills += 1
        self.end()

    def pause(self) -> None:
        """It stands still, and keeps its connections."""
        self.pauses += 1
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """By its own process id; it may be paused, or dead already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raises AssertionError if it ended by itself."""
        assert self.alive, f"{self.name} ended by itself:\n{self.tail()}"

    def tail(self) -> str:
        """The last lines that it wrote."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-_TAIL:])

    def _signal(self, number: signal.Signals) -> None:
        if self.alive and self._process is not None:
            self._process.send_signal(number)
