"""One run: a cell of real processes in trouble, its clients, and proof that nothing was lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from admin_server.ledger.ledger import Entry
from admin_server.ledger.records import Lead
from tests.simulation.history import History, check
from tests.tools.chaos.cell import RealCell, real_cell
from tests.tools.chaos.clients import Caller, call_at_random, callers, probe
from tests.tools.chaos.convergence import converge
from tests.tools.chaos.figures import Figures
from tests.tools.chaos.trouble import Trouble


@dataclass(frozen=True)
class Shape:
    """How large a run is, and what is allowed to happen to whom."""

    store: str = "seaweedfs"
    seconds: float = 75.0  # of trouble
    admins: int = 3
    servers: int = 3
    clients: int = 4
    models: int = 5
    rate: float = 2.5  # calls a second of each client, while they are answered at once
    kill_store: bool = True
    calm_s: float = 120.0  # at most, until everything has converged


@dataclass
class Outcome:
    """What a run leaves behind."""

    seed: int
    shape: Shape
    history: History
    figures: Figures
    entries: list[Entry] = field(default_factory=list[Entry])
    converged_s: float = 0.0

    def summary(self) -> dict[str, Any]:
        """One line of figures."""
        calls = Counter(call.outcome for call in self.history.calls)
        leads = sum(isinstance(entry.record, Lead) for entry in self.entries)
        return {
            "seed": self.seed,
            "store": self.shape.store,
            "seconds": self.shape.seconds,
            "calls": {name: calls[name] for name in ("done", "refused", "unknown")},
            "records": len(self.entries),
            "takeovers": leads - 1,
            "converged_s": round(self.converged_s, 1),
            **self.figures.summary(),
        }


async def play(seed: int, shape: Shape, folder: Path) -> Outcome:
    """Raises Wrong, and whatever no failure of others explains; the notes say what was done."""
    luck = random.Random(seed)
    outcome = Outcome(seed, shape, History(), Figures(time.monotonic))
    async with real_cell(
        shape.store,
        folder,
        admins=shape.admins,
        servers=shape.servers,
        callers=callers(shape.clients, shape.seconds),
        seed=luck.randrange(2**31),
    ) as cell:
        trouble = Trouble(
            cell, random.Random(luck.random()), outcome.figures, kill_store=shape.kill_store
        )
        try:
            await _play(cell, trouble, outcome, luck)
        except BaseException as exc:
            exc.add_note(_report(seed, cell, trouble))
            raise
    return outcome


async def _play(cell: RealCell, trouble: Trouble, outcome: Outcome, luck: random.Random) -> None:
    shape, history = outcome.shape, outcome.history
    everybody = [
        Caller(",".join(luck.sample(cell.addresses, shape.admins)), cell.tokens, history)
        for _ in range(shape.clients + 1)
    ]
    until_s = time.monotonic() + shape.seconds
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(trouble.run(until_s))
            tasks.create_task(probe(everybody[-1], outcome.figures, until_s))
            for number, caller in enumerate(everybody[:-1]):
                own = random.Random(luck.random())
                tasks.create_task(
                    call_at_random(caller, number, own, shape.models, shape.rate, until_s)
                )
    finally:
        for caller in everybody:
            await caller.close()
    await trouble.heal()
    healed_s = time.monotonic()
    state, outcome.entries = await converge(cell, shape.calm_s)
    outcome.converged_s = time.monotonic() - healed_s
    check(history, outcome.entries, state)


def _report(seed: int, cell: RealCell, trouble: Trouble) -> str:
    """What was done to whom, and the last words of every process."""
    logs = [f"--- {child.name}\n{child.tail()}" for child in cell.children]
    return "\n".join([f"seed {seed}", *trouble.trace, *logs])
