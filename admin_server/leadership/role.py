"""This admin's role: leader (owns the cell) or follower (knows the leader).

Written only by the leadership, read by every service of the process.
"""

from __future__ import annotations

import asyncio

from admin_server.cell.cell import Cell
from admin_server.condition import ChangeSignal
from admin_server.storage.store_check import StoreHealth
from sax.errors import NotLeading
from sax.names import CellId


class AdminRole:
    """Has no cell until this admin server leads."""

    def __init__(self, cell_id: CellId, health: StoreHealth) -> None:
        self.cell_id = cell_id
        self.health = health
        self.settled = asyncio.Event()  # the first role is known
        self.changed = ChangeSignal()  # posted when the role or its trouble changes
        self.cell: Cell | None = None  # set while this server leads
        self.term = 0  # our term while we lead
        self.leader = ""  # host:port of the leader, "" if unknown
        self.trouble = "it has just started"  # why the leader is unknown

    def take(self, cell: Cell, term: int, address: str) -> None:
        """This server leads from now on."""
        self.cell, self.term, self.leader, self.trouble = cell, term, address, ""
        self.settled.set()
        self.changed.post()

    def follow(self, leader: str) -> None:
        """Another server leads."""
        self._leave(leader, "")

    def wait(self, trouble: str) -> None:
        """The leader is unknown."""
        self._leave("", trouble)

    def require(self) -> Cell:
        """The cell. Raises NotLeading, with the leader's address if known."""
        if self.cell is None:
            raise NotLeading(f"{self.describe()}: ask the leader", param=self.leader)
        return self.cell

    def warnings(self) -> list[str]:
        """Conditions that need an operator, but refuse no change yet."""
        return [*self.health.warnings, *(self.cell.warnings() if self.cell is not None else ())]

    def describe(self) -> str:
        if self.cell is not None:
            return f"leads {self.cell_id} since record {self.term}"
        if self.leader:
            return f"follows the admin server of {self.cell_id} at {self.leader}"
        return f"waiting for a leader of {self.cell_id}" + (
            f" ({self.trouble})" if self.trouble else ""
        )

    def _leave(self, leader: str, trouble: str) -> None:
        cell, self.cell, self.term = self.cell, None, 0
        news = (self.leader, self.trouble) != (leader, trouble) or cell is not None
        self.leader, self.trouble = leader, trouble
        self.settled.set()
        if cell is not None:
            cell.dismiss()
        if news:
            self.changed.post()
