"""A snapshot of a cell (wanted, planned, seen) for deciders other than the planner."""

from __future__ import annotations

from dataclasses import dataclass

from admin_server.plan import Plan
from admin_server.seen import Seen
from admin_server.state import CellState


@dataclass(frozen=True, slots=True)
class Outlook:
    """The state is the newest; plan and seen are from the last round."""

    state: CellState
    plan: Plan
    seen: Seen
