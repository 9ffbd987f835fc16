"""One random history of a cell: admins, model servers, a store and clients, all of it failing.

A story is its seed. It ends when everything was healed, and gives what there is to check.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from admin_server.cell.cell import Cell
from admin_server.ledger.ledger import Entry, Ledger
from admin_server.ledger.state import CellState
from admin_server.storage.envelope import CorruptLog
from sax.auth.acl import Principal, enter_call
from sax.errors import (
    AdminUnavailable,
    InvalidRequest,
    ModelExists,
    NotFound,
    NotLeading,
    SaxError,
    StaleRevision,
)
from sax.types import ModelSpec, ServableStatus
from tests.simulation import history as h
from tests.simulation.admins import CELL, Admin
from tests.simulation.history import Call, History
from tests.simulation.servers import PATH, Server, join_for_ever
from tests.simulation.store import Bucket, View
from tests.virtual_loop import now, run

_FOLDER = str(CELL).strip("/")
REFUSALS = (ModelExists, NotFound, StaleRevision, InvalidRequest)


@dataclass(frozen=True)
class Shape:
    """How large a story is."""

    admins: int = 3
    servers: int = 4
    clients: int = 4
    models: int = 5
    calls: int = 12  # of each client
    trouble_s: float = 40.0
    calm_s: float = 90.0  # at most, until everything has converged
    troubles: tuple[str, ...] = ("admin", "server", "store")


# Many calls about few models: leaders that are cut off are asked about what others have changed.
BUSY = Shape(models=2, calls=40)
SMALL = Shape(admins=2, servers=3, clients=3, models=3, calls=8, trouble_s=15.0)
# Lies about who leads, alone and beside other trouble.
LIES = replace(SMALL, troubles=("lie",))
LYING = replace(SMALL, troubles=("lie", "lie", *SMALL.troubles))
# The store's objects go and come back beside all other trouble.
LOSING = replace(SMALL, troubles=(*SMALL.troubles, "loss"))


@dataclass
class Outcome:
    """What a story leaves behind."""

    history: History
    entries: list[Entry]
    cell: Cell
    servers: dict[str, Server]
    leaders: int  # how often the lead changed
    trace: list[str] = field(default_factory=list[str])


def play(seed: int, shape: Shape | None = None) -> Outcome:
    """Play one story to its end, and check it. Raises Wrong, and whatever ended an admin server."""
    return run(_Story(seed, shape or Shape()).play())


class _Story:
    def __init__(self, seed: int, shape: Shape) -> None:
        self.luck = random.Random(seed)
        self.shape = shape
        self.bucket = Bucket()
        self.history = History()
        self.trace: list[str] = []
        self.servers = {
            f"10.0.0.{n}:1": Server(f"10.0.0.{n}:1", random.Random(self.luck.random()))
            for n in range(1, shape.servers + 1)
        }
        self.admins = [
            Admin(f"10.0.1.{n}:1", self.bucket, self.servers, random.Random(self.luck.random()))
            for n in range(1, shape.admins + 1)
        ]
        self.troubled = True

    async def play(self) -> Outcome:
        for server in self.servers.values():
            server.start()
        for admin in self.admins:
            admin.start()
        joins = [
            asyncio.ensure_future(join_for_ever(server, self._leaders))
            for server in self.servers.values()
        ]
        trouble = asyncio.ensure_future(self._make_trouble())
        joins.append(asyncio.ensure_future(self._restart_the_puzzled()))
        clients = [
            asyncio.ensure_future(self._client(number)) for number in range(self.shape.clients)
        ]
        await asyncio.gather(trouble, *clients)
        await self._heal()
        cell, entries = await self._converge()
        h.check(self.history, entries, cell.ledger.state)
        leaders = sum(isinstance(entry.record, h.Lead) for entry in entries)
        for task in joins:
            task.cancel()
        for admin in self.admins:
            admin.kill()
        await asyncio.sleep(20)
        return Outcome(self.history, entries, cell, self.servers, leaders, self.trace)

    def _leaders(self) -> list[Cell]:
        """Whoever believes to lead and can be reached."""
        cells = [admin.role.cell for admin in self.admins if admin.way.is_set()]
        return [cell for cell in cells if cell is not None]

    # Trouble

    async def _make_trouble(self) -> None:
        until = now() + self.shape.trouble_s
        running: list[asyncio.Task[None]] = []
        while now() < until:
            await asyncio.sleep(self.luck.expovariate(1 / 2.0))
            kind = self.luck.choice(self.shape.troubles)
            running.append(asyncio.ensure_future(getattr(self, f"_{kind}_trouble")()))
        await asyncio.gather(*running)

    async def _admin_trouble(self) -> None:
        admin = self.luck.choice(self.admins)
        how, pause = self.luck.choice(["kill", "pause", "cut"]), self.luck.uniform(0.5, 9)
        self._note(f"{how} admin {admin.name} for {pause:.1f} s")
        if how == "kill":
            if admin.alive:
                admin.kill()
                await asyncio.sleep(pause)
                # In a store without its objects it would begin a new cell, as it should.
                await self.bucket.whole.wait()
                admin.start()
            return
        view, way = admin.view, admin.way
        view.cut()
        if how == "pause":
            way.clear()
        await asyncio.sleep(pause)
        view.heal()
        way.set()

    async def _server_trouble(self) -> None:
        server = self.luck.choice(list(self.servers.values()))
        how, pause = self.luck.choice(["kill", "pause", "fail"]), self.luck.uniform(0.2, 15)
        self._note(f"{how} server {server.address} for {pause:.1f} s")
        if how == "kill":
            server.kill()
            await asyncio.sleep(pause)
            server.start()
        elif how == "pause":
            server.running.clear()
            await asyncio.sleep(pause)
            server.running.set()
        else:
            server.failing = 0.7
            await asyncio.sleep(pause)
            server.failing = 0.0

    async def _store_trouble(self) -> None:
        how, pause = self.luck.choice(["fail", "stall"]), self.luck.uniform(0.5, 8)
        self._note(f"{how} the store for {pause:.1f} s")
        if how == "stall":
            self.bucket.stalled.clear()
            await asyncio.sleep(pause)
            self.bucket.stalled.set()
        else:
            self.bucket.failing = self.luck.choice([0.1, 0.5, 1.0])
            await asyncio.sleep(pause)
            self.bucket.failing = 0.0

    async def _lie_trouble(self) -> None:
        """Somebody tells a model server of a leader that there is not."""
        server = self.luck.choice(list(self.servers.values()))
        term = self.luck.choice([self.luck.randint(1, 60), 10**11, 2**62])
        self._note(f"tell {server.address} of term {term}")
        with contextlib.suppress(SaxError):
            server.terms.check(term)

    async def _loss_trouble(self) -> None:
        """Somebody deletes the store's objects, or the last record, and brings them back."""
        # Whoever first looks at an empty store rightly begins a new cell there.
        known = all(admin.mark.settled for admin in self.admins if admin.alive)
        if not self.bucket.whole.is_set() or not known:
            return
        how, pause = self.luck.choice(["all", "last"]), self.luck.uniform(0.05, 9)
        if how == "last" and not self._may_lose_the_last():
            return
        self._note(f"take {how} of the store for {pause:.1f} s")
        back = self.bucket.take_all() if how == "all" else self.bucket.take_last(_FOLDER)
        await asyncio.sleep(pause)
        back()

    def _may_lose_the_last(self) -> bool:
        """A beat names the last record, and nobody who believes to lead would write it anew.

        It is all that tells a deposed leader of the next one, until it sees a beat.
        """
        last = self.bucket.last_record(_FOLDER)
        cells = [admin.role.cell for admin in self.admins]
        return last > 0 and all(cell is None or cell.ledger.sequence >= last for cell in cells)

    async def _restart_the_puzzled(self) -> None:
        """An admin server that finds records missing ends, and is started again."""
        while True:
            await asyncio.sleep(0.5)
            for admin in self.admins:
                if self._is_puzzled(admin) and self.bucket.whole.is_set():
                    admin.start()

    def _is_puzzled(self, admin: Admin) -> bool:
        return self.bucket.harmed and isinstance(admin.failure(), CorruptLog)

    async def _heal(self) -> None:
        self.troubled = False
        self.bucket.failing = 0.0
        self.bucket.stalled.set()
        for admin in self.admins:
            admin.resume()
            if not admin.alive:
                admin.start()
        for server in self.servers.values():
            server.failing = 0.0
            if not server.alive.is_set():
                server.start()
            server.running.set()

    # Clients

    async def _client(self, number: int) -> None:
        luck = random.Random(self.luck.random())
        for count in range(self.shape.calls):
            await asyncio.sleep(luck.expovariate(self.shape.calls / self.shape.trouble_s))
            await self._call(luck, f"c{number}-{count}")

    async def _call(self, luck: random.Random, by: str) -> None:
        model_id = f"{CELL}/m{luck.randrange(self.shape.models)}"
        kind = luck.choice([h.PUBLISH, h.PUBLISH, h.UPDATE, h.UPDATE, h.ROLLBACK, h.UNPUBLISH])
        spec = ModelSpec(
            model_id=model_id,
            model_path=PATH,
            checkpoint=f"/{by}",
            replicas=luck.randint(0, 2),
        )
        call = self.history.begin(by, kind, model_id, spec)
        for admin in self._tries(luck):
            try:
                async with asyncio.timeout(10), admin.call() as cell:
                    await self._ask(cell, call, spec)
                return self.history.end(call, "done")
            except NotLeading:
                await asyncio.sleep(luck.uniform(0.1, 1.0))
            except REFUSALS as exc:
                return self.history.end(call, "refused", type(exc).__name__)
            except (AdminUnavailable, TimeoutError):
                return self.history.end(call, "unknown")
        self.history.end(call, "refused", "NotLeading")

    def _tries(self, luck: random.Random) -> Sequence[Admin]:
        return [luck.choice(self.admins) for _ in range(8)]

    async def _ask(self, cell: Cell, call: Call, spec: ModelSpec) -> None:
        enter_call(Principal(call.by))
        if call.kind == h.PUBLISH:
            await cell.publish(spec, by=call.by)
        elif call.kind == h.UPDATE:
            await cell.update(spec, by=call.by)
        elif call.kind == h.ROLLBACK:
            await cell.rollback(call.model_id, by=call.by)
        else:
            await cell.unpublish(call.model_id, by=call.by)

    # The end

    async def _converge(self) -> tuple[Cell, list[Entry]]:
        """The leader and the log, once they agree and every model is as wanted everywhere."""
        until = now() + self.shape.calm_s
        why = ""
        while now() < until:
            await asyncio.sleep(0.5)
            for admin in self.admins:
                if (failure := admin.failure()) is not None and not self._is_puzzled(admin):
                    raise failure
            cells = self._leaders()
            why = f"{len(cells)} lead"
            if len(cells) == 1 and not (why := why_not_converged(cells[0], self.servers)):
                state, entries = await self._read_log()
                if state == cells[0].ledger.state:
                    return cells[0], entries
                # A write of a dead leader has landed late: the living one finds it in a moment.
                why = "the log and the leader do not agree"
        raise h.Wrong(f"not converged after {self.shape.calm_s:g} s of calm: {why}")

    async def _read_log(self) -> tuple[CellState, list[Entry]]:
        """The whole log as an auditor reads it, archive included."""
        ledger = await Ledger.open(View(self.bucket, self.luck), CELL, snapshot_every=3)
        entries = await ledger.entries(before=0, limit=1 << 30)
        return ledger.state, entries[::-1]

    def _note(self, what: str) -> None:
        self.trace.append(f"{now():.3f} {what}")


def why_not_converged(cell: Cell, servers: dict[str, Server]) -> str:
    """What still differs between what is wanted and what the servers hold; "" if nothing."""
    wanted = cell.ledger.state.models
    for server in servers.values():
        for model_id, held in server.models.items():
            spec = wanted.get(model_id)
            if spec is None:
                return f"{server.address} holds {model_id}, which is not published"
            if (held.status, held.version) != (ServableStatus.LOADED, spec.version):
                return f"{server.address} holds {held}, wanted is {spec}"
    for model_id, spec in wanted.items():
        holders = [s.address for s in servers.values() if model_id in s.models]
        if len(holders) != spec.replicas:
            return f"{model_id} is on {holders}, wanted are {spec.replicas}"
        if cell.find(model_id).ready_replicas != spec.replicas:
            return f"{model_id}: clients are told of {cell.find(model_id).ready_replicas}"
    return ""
