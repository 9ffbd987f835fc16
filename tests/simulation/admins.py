"""Admin servers of the real code, without sockets: killed, paused and cut off as a story says."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from admin_server.cell.cell import Cell
from admin_server.cell.reconciler import Timing
from admin_server.leadership import AdminRole, Leadership, LeadTiming
from admin_server.ledger.ledger import Ledger
from admin_server.storage.store_check import StoreHealth
from admin_server.storage.store_mark import StoreMark
from sax.errors import AdminUnavailable
from sax.names import CellId
from sax.types import ServerInfo
from tests.simulation.servers import Network, Server
from tests.simulation.store import Bucket, View
from tests.virtual_loop import now

CELL = CellId("test")
TIMING = Timing(poll_s=1.0, silence_s=8.0, settle_s=3.0)
LEAD = LeadTiming()


class Admin:
    """One admin server process, which can be started again."""

    def __init__(
        self, name: str, bucket: Bucket, servers: dict[str, Server], luck: random.Random
    ) -> None:
        self.name = name
        self._bucket = bucket
        self._servers = servers
        self._luck = luck
        self._life: asyncio.Task[None] | None = None
        self.role = AdminRole(CELL, StoreHealth(now))
        self.errors: list[BaseException] = []

    def start(self) -> None:
        """Run the real leadership over a fresh connection to the store."""
        self.role = AdminRole(CELL, StoreHealth(now))
        self.view = View(self._bucket, self._luck)
        self.mark = StoreMark(self.view, CELL)
        self.way = asyncio.Event()
        self.way.set()
        leadership = Leadership(
            self.role, self.view, self.name, now, self._open, self._lead, timing=LEAD
        )
        self._life = asyncio.ensure_future(leadership.run())

    def kill(self) -> None:
        """kill -9: what is on its way to the store may still land, and nothing else happens."""
        self.pause()
        self.view.die()
        asyncio.get_running_loop().call_later(self._luck.uniform(0, 8), self.view.heal)
        if self._life is not None:
            self._life.cancel()
        self.role = AdminRole(CELL, StoreHealth(now))

    def pause(self) -> None:
        """SIGSTOP, as the world sees it: nothing comes from it or goes to it."""
        self.view.cut()
        self.way.clear()

    def resume(self) -> None:
        self.view.heal()
        self.way.set()

    @property
    def alive(self) -> bool:
        return self._life is not None and not self._life.cancelled() and not self._life.cancelling()

    def failure(self) -> BaseException | None:
        """What ended it, if it ended by itself."""
        life = self._life
        return life.exception() if life and life.done() and not life.cancelled() else None

    @asynccontextmanager
    async def call(self) -> AsyncGenerator[Cell]:
        """The cell as a client's call reaches it. Raises NotLeading, AdminUnavailable."""
        await asyncio.sleep(0.002)
        role = self.role
        if not self.alive:
            raise AdminUnavailable(f"{self.name} refuses the connection")
        await self.way.wait()
        yield role.require()
        await self.way.wait()
        if role is not self.role:
            raise AdminUnavailable(f"{self.name} died before it answered")

    async def _open(self) -> Ledger:
        health, mark = self.role.health, self.mark
        return await Ledger.open(self.view, CELL, snapshot_every=3, health=health, mark=mark)

    @asynccontextmanager
    async def _lead(
        self, ledger: Ledger, term: int, servers: Sequence[ServerInfo] | None
    ) -> AsyncGenerator[Cell]:
        network = Network(self._servers, self.way, term)
        jitter = random.Random(self._luck.random())
        cell = Cell(ledger, network, now, timing=TIMING, jitter=jitter, servers=servers)
        loop = asyncio.ensure_future(cell.reconciler.run())
        try:
            yield cell
        finally:
            loop.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loop
            await cell.disputes.close()
            await cell.reconciler.close()
