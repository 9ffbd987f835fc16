"""A running `sax` whose output is read while it runs: `sax up`, supervised as a user's would be."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sax.cli.local.cell_plan import CellPlan
from tests.demo_model import ROOT
from tests.end_to_end.cell import READY_S


class Command:
    """A running `sax` whose output is collected line by line."""

    def __init__(self, *words: str, module: str = "sax.cli") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def until(self, text: str, within_s: float = READY_S) -> None:
        """Wait until the output contains this."""

        def over() -> bool:
            return text in self.output or self.process.poll() is not None

        with self._changed:
            self._changed.wait_for(over, within_s)
        assert text in self.output, self.output

    def end(self, number: signal.Signals) -> int:
        """Send a signal; returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(120)
        self._reader.join()
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def sax(*words: str, module: str = "sax.cli") -> Iterator[Command]:
    """A running `sax`, killed at the end unless it has ended."""
    command = Command(*words, module=module)
    try:
        yield command
    finally:
        command.close()


def options(plan: CellPlan) -> list[str]:
    """The flags with which `sax up` runs this plan."""
    return [
        f"--dir={plan.folder}",
        f"--compile-cache={plan.compile_cache}",
        f"--port={plan.gateway_port}",
        f"--admin-port={plan.admin_port}",
        f"--model-port={plan.model_port}",
        f"--status-port={plan.status_port}",
        f"--metrics-port={plan.metrics_port}",
        *(_several_hosts(plan) if plan.servers * plan.hosts > 1 else ()),
        *(_islands(plan) if plan.islands else ()),
    ]


def _islands(plan: CellPlan) -> list[str]:
    return [
        f"--islands={plan.islands}",
        f"--devices-per-island={plan.devices_per_island}",
        f"--pathways-port={plan.pathways_port}",
    ]


def _several_hosts(plan: CellPlan) -> list[str]:
    devices = plan.devices_per_host
    return [
        f"--servers={plan.servers}",
        f"--hosts={plan.hosts}",
        f"--group-port={plan.group_port}",
        *((f"--devices-per-host={devices}",) if devices else ()),
    ]
