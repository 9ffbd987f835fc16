"""The Go client, which finds the admin server of the cell where it writes its address."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cell import Cell
from tests.end_to_end.plain.go_client.build import build, missing


@dataclass(frozen=True)
class GoClient:
    program: Path
    root: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run a command beside the test; replies are lines of its stdout."""
        command = [str(self.program), f"--sax_root={self.root}", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: str) -> Any:
        """Return the reply of a command, None if it is empty; errors have a "code"."""
        with self.start(*words) as process:
            told, _ = process.communicate(timeout=300)
        reply = json.loads(told) if told else None
        assert process.returncode == (1 if reply and "code" in reply else 0), (words, reply)
        return reply


@pytest.fixture(scope="module")
def program() -> Path:
    if absent := missing():
        pytest.skip(f"{absent} is not here: make golang, on Debian or Ubuntu")
    return build()


@pytest.fixture(scope="module")
def go(program: Path, cell: Cell) -> GoClient:
    return GoClient(program, cell.plan.folder / "root")
