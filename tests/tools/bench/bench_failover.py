"""A leader dies: how long until the follower leads, knows every server, and takes a change.

Two admin servers of the real code with the timings of production in one process, over one store in
memory; the model servers are arithmetic behind the reconciler's protocol. The leader loses its
store and its servers at one moment and says nothing more, as after a power cut: nobody can tell
that its process is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context

from admin_server.__main__ import collect_seldom
from admin_server.cell.cell import Cell
from admin_server.cell.reconciler import Timing
from admin_server.leadership import AdminRole, Leadership, LeadTiming
from admin_server.ledger.ledger import Ledger
from admin_server.process import Clock
from admin_server.storage.store_check import StoreHealth
from sax.names import CellId
from sax.storage.object_store import ObjectStore, StoreUnavailable, open_store
from sax.types import ModelSpec, ServerInfo
from tests.admin_server.fake_fleet import FakeFleet, model_specs, server_infos
from tests.tools.bench.table import Table

SIZES = ((125, 250), (250, 500), (500, 1000), (1000, 2000))
CELL = CellId("test")


@dataclass
class Figures:
    """Seconds since the leader's death."""

    servers: int
    models: int
    replicas: int
    leads_s: float
    changed_s: float
    known_s: float
    loads: int  # replicas that were loaded anew: there is no reason for one


class Severed:
    """A store that can be taken away from its user."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.gone = False

    async def create(self, name: str, data: bytes) -> None:
        self._check()
        await self._store.create(name, data)

    async def replace(self, name: str, data: bytes) -> None:
        self._check()
        await self._store.replace(name, data)

    async def get(self, name: str) -> bytes:
        self._check()
        return await self._store.get(name)

    async def names(self, prefix: str) -> list[str]:
        self._check()
        return await self._store.names(prefix)

    async def delete(self, names: Sequence[str]) -> None:
        self._check()
        await self._store.delete(names)

    def _check(self) -> None:
        if self.gone:
            raise StoreUnavailable("the store is not to be reached from here")


class Admin:
    """One admin server without sockets."""

    def __init__(self, name: str, store: ObjectStore, fleet: FakeFleet) -> None:
        self.clock = Clock()
        self.role = AdminRole(CELL, StoreHealth(self.clock))
        self.store = Severed(store)
        self._fleet = fleet
        leadership = Leadership(
            self.role,
            self.store,
            name,
            self.clock,
            self._open,
            self._lead,
            timing=LeadTiming(),
        )
        leadership._mark = ""  # the two are one process, which is not gone: as on two machines
        self.life = asyncio.create_task(leadership.run())

    async def _open(self) -> Ledger:
        return await Ledger.open(self.store, CELL, snapshot_every=1000, health=self.role.health)

    @asynccontextmanager
    async def _lead(
        self, ledger: Ledger, term: int, servers: Sequence[ServerInfo]
    ) -> AsyncGenerator[Cell]:
        cell = Cell(ledger, self._fleet, self.clock, timing=Timing(), servers=servers)
        loop = asyncio.create_task(cell.reconciler.run())
        try:
            yield cell
        finally:
            loop.cancel()
            await cell.reconciler.close()

    def die(self) -> None:
        self.store.gone = True
        self.life.cancel()


def run() -> list[Table]:
    table = Table(
        "Control plane: a leader dies",
        "Seconds from the leader's death, with a beat each second and 3 s of patience, until the "
        "follower leads, until it has acknowledged a change, and until it has heard from every "
        "server and calls every replica ready; and how many replicas were loaded again. Bar for "
        "1,000 servers: 5 s.",
        ("servers", "models", "replicas", "leads s", "change s", "all ready s", "loaded again"),
    )
    for servers, models in SIZES:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
            one = own.submit(measure, servers, models).result()
        table.add(
            one.servers,
            one.models,
            one.replicas,
            f"{one.leads_s:.2f}",
            f"{one.changed_s:.2f}",
            f"{one.known_s:.2f}",
            one.loads,
        )
    return [table]


def measure(servers: int, models: int) -> Figures:
    """All figures of one size."""
    collect_seldom()
    return asyncio.run(_measure(servers, models))


async def _measure(servers: int, models: int) -> Figures:
    specs = model_specs(models)
    fleet = FakeFleet(server_infos(servers), load_s=0.05)
    store = open_store("memory://")
    first = Admin("10.0.1.1:10000", store, fleet)
    await _until(lambda: first.role.cell is not None)
    cell = first.role.require()
    for spec in specs:
        await cell.publish(spec)
    for info in fleet.infos.values():
        cell.join(info)
    second = Admin("10.0.1.2:10000", store, fleet)
    for spec in specs:
        await cell.wait_for_ready(spec.model_id, spec.replicas)
    await asyncio.sleep(3)  # the roster is written, and the follower has read all of the log

    loads = fleet.loads
    died_s = time.perf_counter()
    first.die()
    await _until(lambda: second.role.cell is not None)
    leads_s = time.perf_counter() - died_s
    cell = second.role.require()
    await cell.publish(_another())
    changed_s = time.perf_counter() - died_s
    await _until(lambda: _all_ready(cell, specs))
    figures = Figures(
        servers=servers,
        models=models,
        replicas=sum(spec.replicas for spec in specs),
        leads_s=leads_s,
        changed_s=changed_s,
        known_s=time.perf_counter() - died_s,
        loads=fleet.loads - loads,
    )
    second.die()
    await asyncio.sleep(0.1)
    return figures


def _another() -> ModelSpec:
    """A model that is published and loaded nowhere."""
    return ModelSpec(
        model_id=f"{CELL}/another",
        model_path=model_specs(1)[0].model_path,
        checkpoint="None",
        replicas=0,
    )


def _all_ready(cell: Cell, specs: Sequence[ModelSpec]) -> bool:
    return all(
        (report := cell._plan.models.get(spec.model_id)) is not None
        and report.current >= spec.replicas
        for spec in specs
    )


async def _until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
