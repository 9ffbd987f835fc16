"""Cells that rows of the same shape share: starting one costs seconds, loading a model more."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from tempfile import mkdtemp

from tests.demo_model import demo_model
from tests.end_to_end.cell import Cell, local_plan
from tests.identities import Identities
from tests.tools.stress.row import Row
from tests.tools.stress.users import Users

# The same everywhere, so that steps compile once.
SLOTS = 8
FLAGS = (f"--slots={SLOTS}", "--max_context=2048")
_WARM_TOKENS = 420

OPERATOR = "ops"
PEOPLE = (OPERATOR, "alice", "bob")  # the names of a cell with tokens


class Cells:
    """Running cells by shape. Close it to end them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cells: dict[tuple[object, ...], Cell] = {}
        self._numbers = itertools.count()  # of folders, one per cell ever started

    def of(self, row: Row) -> Cell:
        """Return a cell with /sax/test/smollm2 ready on every server."""
        if row.fresh:
            self.drop(row)
        shape = _shape(row)
        if shape not in self._cells:
            self._cells[shape] = self._start(row)
        return self._cells[shape]

    def drop(self, row: Row) -> None:
        """End a row's cell: after a failure nobody knows what state it is in."""
        if cell := self._cells.pop(_shape(row), None):
            cell.close()

    def close(self) -> None:
        for cell in self._cells.values():
            cell.close()
        self._cells.clear()

    def _start(self, row: Row) -> Cell:
        folder = Path(mkdtemp(dir=self._folder))  # new: a cell that was dropped has its own
        people = Identities(folder, *PEOPLE) if row.tokens else None
        plan = local_plan(
            folder,
            *FLAGS,
            *row.model_server_flags,
            servers=row.servers,
            hosts=row.hosts,
            tokens=people.path if people else None,
            admin_acl=OPERATOR if people else "",
        )
        cell = Cell(plan, people).__enter__()
        cell.publish(str(demo_model()), replicas=row.servers)
        asyncio.run(_warm(cell, row.servers * SLOTS))
        return cell


async def _warm(cell: Cell, streams: int) -> None:
    """Serve as many requests at once as there are slots. The first steps of a size take memory that
    the server keeps for the next ones (model_server.process.heap); an attack is not to pay it.
    """
    async with Users(cell) as users:
        ended = [await each for each in [users.begin(_WARM_TOKENS) for _ in range(streams)]]
    assert not any(one.error for one in ended), ended


def _shape(row: Row) -> tuple[object, ...]:
    """Rows of one shape share a cell; a fresh one shares with nobody."""
    own = row.title if row.fresh else ""
    return row.servers, row.hosts, row.model_server_flags, row.tokens, own
