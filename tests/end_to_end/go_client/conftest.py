"""The Go client, and a cell whose admin server writes its address where such clients look."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.cell import Cell, local_plan
from tests.end_to_end.conftest import FLAGS
from tests.end_to_end.go_client.build import build, missing


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
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def go(program: Path, root: Path) -> GoClient:
    return GoClient(program, root)


@pytest.fixture(scope="module")
def rooted(go: GoClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """A cell of the tests' own: they start its admin server again."""
    plan = local_plan(tmp_path_factory.mktemp("cell"), *FLAGS)
    with Cell(replace(plan, admin_flags=(f"--sax_root={go.root}",))) as cell:
        yield cell
