"""Rows of the stress table: an attack on a cell of real processes, and what must hold beside it.

A row is a function that takes a `Cell`, does harm to it as a careless or hostile user would,
asserts that the answer is right, and returns one line for the table. `run` puts a light user beside
it (`Neighbour`) and reports the longest pause in that user's streams, its errors, servers that died
and memory that did not come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.end_to_end.cell import Cell
from tests.tools.stress.neighbour import Neighbour

Attack = Callable[[Cell], str]

MEMORY_NOISE = 64 << 20  # bytes that an allocator may keep after an attack
_MEMORY_BACK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    title: str
    attack: Attack
    servers: int = 1
    hosts: int = 1  # of each server
    model_server_flags: tuple[str, ...] = ()
    tokens: bool = False  # True: the cell asks for tokens (tests/identities.py)
    ends: tuple[str, ...] = ()  # processes that the attack itself ends and starts again
    neighbour: bool = True  # False: the attack takes the only replica, so nobody can be served
    longest_gap_s: float = 0.25  # of the neighbour's streams
    most_kept: int = MEMORY_NOISE  # bytes, by all processes afterwards
    fresh: bool = False  # True: a cell of its own, dropped afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of a row. Times in seconds, memory in bytes."""

    text: str  # what the attack saw
    took_s: float
    longest_gap_s: float  # between two tokens of the neighbour; 0 without one
    errors: tuple[str, ...]  # of the neighbour
    died: tuple[str, ...]  # processes that are not the ones they were
    memory_kept: int  # of all processes, one second after the end


ROWS: dict[str, Row] = {}  # by the attack's name


def row(
    title: str,
    *,
    servers: int = 1,
    hosts: int = 1,
    model_server_flags: tuple[str, ...] = (),
    tokens: bool = False,
    ends: tuple[str, ...] = (),
    neighbour: bool = True,
    longest_gap_s: float = 0.25,
    most_kept: int = MEMORY_NOISE,
    fresh: bool = False,
) -> Callable[[Attack], Attack]:
    """Add an attack to the table."""

    def add(attack: Attack) -> Attack:
        ROWS[attack.__name__] = Row(
            title=title,
            attack=attack,
            servers=servers,
            hosts=hosts,
            model_server_flags=model_server_flags,
            tokens=tokens,
            ends=ends,
            neighbour=neighbour,
            longest_gap_s=longest_gap_s,
            most_kept=most_kept,
            fresh=fresh,
        )
        return attack

    return add


def run(one: Row, cell: Cell) -> Outcome:
    """Run a row once on a cell that serves SmolLM2. Raises what the attack asserts."""
    before = cell.memory()
    processes = {name: pid for name, pid in cell.pids().items() if name not in one.ends}
    with Neighbour(cell) if one.neighbour else Neighbour.absent() as neighbour:
        began_s = time.monotonic()
        text = one.attack(cell)
        took_s = time.monotonic() - began_s
    time.sleep(_MEMORY_BACK_S)
    after = cell.pids()
    return Outcome(
        text=text,
        took_s=took_s,
        longest_gap_s=neighbour.longest_gap_s,
        errors=tuple(neighbour.errors),
        died=tuple(name for name, pid in processes.items() if after.get(name) != pid),
        # A process that was started again is not the one that was measured.
        memory_kept=0 if one.ends else max(0, cell.memory() - before),
    )


def check(one: Row, outcome: Outcome) -> None:
    """Assert what must hold beside every attack."""
    assert not outcome.died, f"{outcome.died} died"
    assert not outcome.errors, f"the neighbour saw {outcome.errors}"
    assert outcome.longest_gap_s <= one.longest_gap_s, (
        f"the neighbour's stream paused {outcome.longest_gap_s:.2f} s"
    )
    assert outcome.memory_kept <= one.most_kept, f"{outcome.memory_kept >> 20} MiB were kept"
