"""The control plane at the size of a large cell: rounds, memory, watchers, lists.

The real cell, reconciler and ledger with model servers in the same process (arithmetic behind the
reconciler's protocol). Statuses go through the bytes of the wire; gRPC itself does not take part.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from admin_server.__main__ import collect_seldom
from admin_server.api.server import CellListing
from admin_server.api.status_page import StatusView, describe
from admin_server.cell.cell import Cell
from admin_server.cell.reconciler import Timing
from admin_server.leadership import AdminRole
from admin_server.ledger.ledger import Ledger
from admin_server.process import Clock
from admin_server.storage.store_check import StoreHealth
from sax.names import CellId
from sax.storage.object_store import open_store
from tests.admin_server.fake_fleet import FakeFleet, model_specs, server_infos
from tests.processes import resident
from tests.tools.bench.table import Table

SIZES = ((125, 250), (250, 500), (500, 1000), (1000, 2000))
WATCHERS = 100
STEADY_S = 20.0
CHANGES_A_SECOND = 5
_LOAD_S = 0.2
_MIB = 2**20


@dataclass
class Figures:
    """What one size of a cell costs."""

    servers: int
    models: int
    replicas: int
    rounds_to_ready: int
    ready_s: float
    worst_round_to_ready_s: float
    rounds_s: list[float]
    rounds_cpu_s: list[float]
    asked_a_second: float
    worst_stall_s: float
    resident: int
    wake_ups: int
    changes: int
    list_s: float
    page_s: float
    page_bytes: int


def run() -> list[Table]:
    figures: list[Figures] = []
    for servers, models in SIZES:
        # In a process of its own: memory that one size took would count for the next.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
            figures.append(own.submit(measure, servers, models).result())
    return [_rounds(figures), _surroundings(figures)]


def measure(servers: int, models: int) -> Figures:
    """All figures of one size, in a process set up as an admin server's is."""
    collect_seldom()
    return asyncio.run(_measure(servers, models))


def _rounds(figures: list[Figures]) -> Table:
    table = Table(
        "Control plane: one round",
        f"A reconcile round (view, plan, watch sets) over {STEADY_S:g} s, in wall time and, for "
        "busy machines, in CPU time of its thread, while every server answers GetStatus once a "
        f"second, {WATCHERS} clients watch and an operator "
        f"changes {CHANGES_A_SECOND} models a second; first, all models come up from nothing, a "
        f"load taking {_LOAD_S:g} s. Bar for 1,000 servers: 100 ms.",
        (
            "servers",
            "models",
            "replicas",
            "median ms",
            "p99 ms",
            "median CPU ms",
            "p99 CPU ms",
            "CPU for each doubling",
            "rounds until all ready",
            "s until all ready",
            "slowest of these ms",
        ),
    )
    before = None
    for one in figures:
        cpu = statistics.median(one.rounds_cpu_s)
        table.add(
            one.servers,
            one.models,
            one.replicas,
            f"{statistics.median(one.rounds_s) * 1e3:.1f}",
            f"{_percentile(one.rounds_s, 0.99) * 1e3:.1f}",
            f"{cpu * 1e3:.1f}",
            f"{_percentile(one.rounds_cpu_s, 0.99) * 1e3:.1f}",
            f"x {cpu / before:.2f}" if before else "",
            one.rounds_to_ready,
            f"{one.ready_s:.1f}",
            f"{one.worst_round_to_ready_s * 1e3:.1f}",
        )
        before = cpu
    return table


def _surroundings(figures: list[Figures]) -> Table:
    table = Table(
        "Control plane: memory, watchers and lists",
        f"The same runs. Memory is the whole process with its {WATCHERS} watchers and its model "
        "servers' side. A stall is how much too late a task that sleeps 5 ms woke. Bar for 1,000 "
        "servers: 500 MB.",
        (
            "servers",
            "resident MiB",
            "GetStatus a second",
            "longest stall ms",
            "changes",
            "wake-ups of watchers",
            "List of the cell ms",
            "/status.json ms",
            "/status.json KiB",
        ),
    )
    for one in figures:
        table.add(
            one.servers,
            one.resident // _MIB,
            f"{one.asked_a_second:.0f}",
            f"{one.worst_stall_s * 1e3:.0f}",
            one.changes,
            one.wake_ups,
            f"{one.list_s * 1e3:.0f}",
            f"{one.page_s * 1e3:.0f}",
            one.page_bytes // 1024,
        )
    return table


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def _measure(servers: int, models: int) -> Figures:
    specs = model_specs(models)
    fleet = FakeFleet(server_infos(servers), load_s=_LOAD_S)
    store = open_store("memory://")
    ledger = await Ledger.open(store, CellId.parse("/sax/test"), snapshot_every=1000)
    cell = Cell(ledger, fleet, Clock(), timing=Timing(settle_s=0.0), jitter=random.Random(0))
    rounds = cell.reconciler.rounds
    cpu_s = _timed_rounds(cell)
    for spec in specs:
        await cell.publish(spec)
    for info in fleet.infos.values():
        cell.join(info)
    wake_ups: Counter[str] = Counter()
    watched = [specs[number * len(specs) // WATCHERS].model_id for number in range(WATCHERS)]
    tasks = [asyncio.create_task(_watch(cell, model_id, wake_ups)) for model_id in watched]
    began_s = time.perf_counter()
    tasks.append(asyncio.create_task(cell.reconciler.run()))
    for spec in specs:
        await cell.wait_for_ready(spec.model_id, spec.replicas)
    ready_s = time.perf_counter() - began_s
    rounds_to_ready, worst = len(rounds), max(rounds)
    await asyncio.sleep(2)

    rounds.clear()
    cpu_s.clear()
    wake_ups.clear()
    asked, stalls = fleet.asked, [0.0]
    stalling = asyncio.create_task(_stalls(stalls))
    changes = await _operate(cell)
    stalling.cancel()
    figures = Figures(
        servers=servers,
        models=models,
        replicas=sum(spec.replicas for spec in specs),
        rounds_to_ready=rounds_to_ready,
        ready_s=ready_s,
        worst_round_to_ready_s=worst,
        rounds_s=list(rounds),
        rounds_cpu_s=list(cpu_s),
        asked_a_second=(fleet.asked - asked) / STEADY_S,
        worst_stall_s=max(stalls),
        resident=resident(os.getpid()),
        wake_ups=wake_ups.total(),
        changes=changes,
        list_s=0.0,
        page_s=0.0,
        page_bytes=0,
    )
    began_s = time.perf_counter()
    CellListing(time.monotonic).answer(cell, "").SerializeToString()
    figures.list_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    figures.page_bytes = len(json.dumps(describe(role_of(cell), time.time(), StatusView())))
    figures.page_s = time.perf_counter() - began_s
    for task in tasks:
        task.cancel()
    await cell.reconciler.close()
    return figures


def _timed_rounds(cell: Cell) -> list[float]:
    """The CPU seconds of every round from now on."""
    spent: list[float] = []
    step = cell.reconciler._step

    def timed() -> None:
        began_s = time.thread_time()
        step()
        spent.append(time.thread_time() - began_s)

    cell.reconciler._step = timed
    return spent


async def _operate(cell: Cell) -> int:
    """Change the replicas of one model after the other, as operators do; how many changes."""
    ends_s, changes = time.perf_counter() + STEADY_S, 0
    chance = random.Random(0)
    while time.perf_counter() < ends_s:
        spec = cell.find(chance.choice(sorted(cell.ledger.state.models))).spec
        await cell.update(replace(spec, replicas=spec.replicas % 5 + 1))
        changes += 1
        await asyncio.sleep(1 / CHANGES_A_SECOND)
    return changes


async def _watch(cell: Cell, model_id: str, wake_ups: Counter[str]) -> None:
    """A client that follows one model for ever."""
    seqno = -1
    while True:
        delta = await cell.watch(model_id, cell.id, seqno, 60.0)
        wake_ups[model_id] += 1
        seqno = delta.next_seqno


async def _stalls(stalls: list[float]) -> None:
    while True:
        began_s = time.perf_counter()
        await asyncio.sleep(0.005)
        stalls.append(time.perf_counter() - began_s - 0.005)


def role_of(cell: Cell) -> AdminRole:
    """The role of an admin server that leads this cell."""
    role = AdminRole(CellId.parse("/sax/test"), StoreHealth(time.time))
    role.take(cell, 1, "10.0.0.1:1")
    return role
