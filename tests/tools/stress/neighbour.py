"""The light user beside an attack (`light_user.py`), as the attack sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from tests.demo_model import ROOT
from tests.end_to_end.cell import SMOLLM2, Cell


class Neighbour:
    """Streams completions from entry to exit; afterwards tells of every pause and error."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.longest_gap_s = 0.0
        self.errors: list[str] = []

    @staticmethod
    @contextmanager
    def absent() -> Iterator[Neighbour]:
        """Nobody: for attacks on the only replica."""
        nobody = Neighbour.__new__(Neighbour)
        nobody.longest_gap_s, nobody.errors = 0.0, []
        yield nobody

    def __enter__(self) -> Neighbour:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.tools.stress.light_user",
                *(self._cell.url, SMOLLM2, json.dumps(self._cell.headers)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "the neighbour ended"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        told, _ = self._process.communicate("", timeout=120)
        facts = json.loads(told.splitlines()[-1])
        self.longest_gap_s, self.errors = facts["longest_gap_s"], facts["errors"]
