"""Everything that goes wrong in a run: who is killed, paused or cut off, when, for how long.

All choices come from one seed. Processes are scheduled by the machine, so the same seed makes the
same kind of run, and never the same run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.stores.fault_proxy import Mood
from tests.tools.chaos.cell import Admin, RealCell, Server
from tests.tools.chaos.child import Child
from tests.tools.chaos.figures import Figures

_CUTS: tuple[Mood, ...] = ("cut", "stall", "reset", "lost", "slow down")
_LEADER_FIRST = 0.6  # the share of troubles of admin servers that go for the leader
_MEAN_GAP_S = 1.5
_LONGEST_S = 5.0


@dataclass
class Trouble:
    """Makes it, and notes it down."""

    cell: RealCell
    luck: random.Random
    figures: Figures
    kill_store: bool
    trace: list[str] = field(default_factory=list[str])
    _busy: set[str] = field(default_factory=set[str])  # who is in trouble now
    _running: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _began_s: float = field(default_factory=time.monotonic)

    async def run(self, until_s: float) -> None:
        """Start one trouble after the other; several last at the same time.

        The last blow falls at the end, and is left as it is for `heal`.
        """
        kinds = (*[self._admin] * 3, *[self._server] * 2, self._store)
        try:
            while time.monotonic() < until_s:
                gap_s = self.luck.expovariate(1 / _MEAN_GAP_S)
                await asyncio.sleep(min(gap_s, until_s - time.monotonic()))
                await self.luck.choice(kinds)(self.luck.uniform(0.5, _LONGEST_S))
                for task in [task for task in self._running if task.done()]:
                    self._running.remove(task)
                    await task  # raises what went wrong with the making of trouble
            await self._last_blow()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def heal(self) -> None:
        """Everybody runs, and everything goes through."""
        for proxy in self.cell.store.proxies:
            proxy.mood = "well"
        for server in self.cell.servers:
            server.broken.unlink(missing_ok=True)
        for child in self.cell.children:
            child.resume()
            if not child.alive:
                child.start()
        await self.cell.store.until_up()

    async def _last_blow(self) -> None:
        victims = [self.luck.choice(self.cell.servers).child]
        victims += [admin.child for admin, _ in await self.cell.leaders()]
        for child in victims:
            kind = "leader" if child.name.startswith("admin") else "server"
            self.figures.troubles[f"kill {kind}"] += 1
            self.trace.append(f"at the end: kill {child.name}")
            child.kill()

    async def _admin(self, pause_s: float) -> None:
        leaders = [admin for admin, _ in await self.cell.leaders()]
        wanted = self.luck.random() < _LEADER_FIRST
        admin = leaders[0] if leaders and wanted else self.luck.choice(self.cell.admins)
        ways = ("kill", "pause", "cut") if self.cell.store.proxies else ("kill", "pause")
        how = self.luck.choice(ways)
        leads = admin in leaders

        async def act() -> None:
            if leads:
                self.figures.lost(how, admin.child.name, calm=self._busy_alone(admin.child.name))
            try:
                await self._hit(how, admin, pause_s)
            finally:
                self.figures.back(admin.child.name)

        self._begin(how, admin.child.name, pause_s, act, "leader" if leads else "follower")

    async def _hit(self, how: str, admin: Admin, pause_s: float) -> None:
        if how == "cut":
            await self._cut([admin.number], self.luck.choice(_CUTS), pause_s)
        else:
            await self._stop(how, admin.child, pause_s)

    async def _server(self, pause_s: float) -> None:
        server = self.luck.choice(self.cell.servers)
        how = self.luck.choice(("kill", "pause", "break"))

        async def act() -> None:
            if how == "break":
                await self._break(server, pause_s)
            else:
                await self._stop(how, server.child, pause_s)

        self._begin(how, server.child.name, pause_s, act)

    async def _store(self, pause_s: float) -> None:
        store = self.cell.store
        if store.child is None:
            return
        child, all_admins = store.child, [proxy for proxy, _ in enumerate(store.proxies)]
        how = self.luck.choice(("pause", "cut", "kill") if self.kill_store else ("pause", "cut"))

        async def act() -> None:
            if how == "cut":
                await self._cut(all_admins, self.luck.choice(_CUTS), pause_s)
            else:
                await self._stop(how, child, pause_s)
                await store.until_up()

        self._begin(how, child.name, pause_s, act)

    def _begin(
        self,
        how: str,
        victim: str,
        pause_s: float,
        act: Callable[[], Awaitable[None]],
        role: str = "",
    ) -> None:
        """Unless the victim is in trouble already."""
        if victim in self._busy:
            return
        kind = victim.partition("-")[0]
        self.figures.troubles[f"{how} {role or kind}"] += 1
        at_s = time.monotonic() - self._began_s
        self.trace.append(f"{at_s:7.2f} s: {how} {victim} {role} for {pause_s:.1f} s")
        if kind != "server":
            self.figures.disturbed(victim)
        self._busy.add(victim)

        async def run() -> None:
            try:
                await act()
            finally:
                self._busy.discard(victim)

        self._running.append(asyncio.ensure_future(run()))

    def _busy_alone(self, victim: str) -> bool:
        return not [one for one in self._busy if one != victim and not one.startswith("server-")]

    async def _stop(self, how: str, child: Child, pause_s: float) -> None:
        if how == "kill":
            child.kill()
            await asyncio.sleep(pause_s)
            child.start()
            return
        child.check()
        child.pause()
        await asyncio.sleep(pause_s)
        child.resume()

    async def _cut(self, numbers: list[int], mood: Mood, pause_s: float) -> None:
        proxies = [self.cell.store.proxies[number] for number in numbers]
        for proxy in proxies:
            proxy.mood = mood
        await asyncio.sleep(pause_s)
        for proxy in proxies:
            proxy.mood = "well"

    async def _break(self, server: Server, pause_s: float) -> None:
        server.broken.touch()
        await asyncio.sleep(pause_s)
        server.broken.unlink(missing_ok=True)
