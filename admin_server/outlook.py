"""A cell as it is now: what is wanted, planned and seen, for whoever decides beside the planner."""

from __future__ import annotations

from dataclasses import dataclass

from admin_server.plan import Plan
from admin_server.seen import Seen
from admin_server.state import CellState


@dataclass(frozen=True, slots=True)
class Outlook:
    """The plan is the last one, of a moment ago; the state is the newest."""

    state: CellState
    plan: Plan
    seen: Seen
