"""Model servers that load by arithmetic, and the network between them and the admin servers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from admin_server.assignment.seen import Action, LoadAction, UnloadAction
from admin_server.cell.cell import Cell
from model_server.services.fencing import Fencing
from sax.errors import CheckpointError, ReplicaLost, SaxError
from sax.types import ModelSpec, ServableInfo, ServableStatus, ServerInfo, ServerStatus
from tests.virtual_loop import now

PATH = "x"
MEMORY = 16
_TIMEOUT_S = 5.0


@dataclass
class Server:
    """One model server process. A kill empties it; a pause holds its answers back."""

    address: str
    luck: random.Random
    failing: float = 0.0  # the share of loads that fail
    lives: int = 0
    models: dict[str, ServableInfo] = field(default_factory=dict[str, ServableInfo])
    alive: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Event = field(default_factory=asyncio.Event)  # not paused
    loads: int = 0

    def start(self) -> None:
        self.lives += 1
        self.models = {}
        self.terms = Fencing(now)
        self.alive.set()
        self.running.set()

    def kill(self) -> None:
        self.alive.clear()
        self.models = {}
        self.lives += 1

    @property
    def incarnation(self) -> str:
        return f"{self.address} {self.lives}"

    @property
    def info(self) -> ServerInfo:
        return ServerInfo(
            address=self.address,
            model_paths=(PATH,),
            incarnation=self.incarnation,
            memory_total=MEMORY,
        )

    def status(self) -> ServerStatus:
        used = sum(model.memory for model in self.models.values())
        return ServerStatus(tuple(self.models.values()), self.incarnation, MEMORY, used)

    async def load(self, action: LoadAction) -> None:
        life, spec = self.lives, action.spec
        loading = ServableInfo(
            model_id=spec.model_id,
            status=ServableStatus.LOADING,
            version=spec.version,
            memory=1,
            acls=spec.acls,
        )
        self.models[spec.model_id] = loading
        self.loads += 1
        await asyncio.sleep(self.luck.uniform(0.1, 2.0))
        if self.lives != life or self.models.get(spec.model_id) is not loading:
            raise ReplicaLost(f"{self.address} lost the model while it was loading")
        if self.luck.random() < self.failing:
            self.models[spec.model_id] = replace(
                loading, status=ServableStatus.FAILED, reason="bad luck"
            )
            raise CheckpointError("bad luck")
        self.models[spec.model_id] = replace(loading, status=ServableStatus.LOADED)

    async def unload(self, model_id: str) -> None:
        await asyncio.sleep(0.05)
        self.models.pop(model_id, None)

    def update(self, action: object) -> None:
        """New ACLs in place."""
        spec = action.spec  # type: ignore[attr-defined]
        held = self.models.get(spec.model_id)
        if held is not None:
            self.models[spec.model_id] = replace(held, acls=spec.acls)


class Network:
    """The wires between one admin server and all model servers: a Modelets."""

    def __init__(self, servers: dict[str, Server], way: asyncio.Event, term: int) -> None:
        self._servers = servers
        self._way = way  # set: the admin server is connected, and is not paused
        self._term = term

    async def status(self, address: str) -> ServerStatus:
        async with self._call(address):
            server = await self._reach(address)
            status = server.status()
            await asyncio.sleep(0.002)
            await self._way.wait()
            return status

    async def carry_out(self, action: Action) -> None:
        # As over gRPC: no deadline, and a peer that dies breaks the call.
        server = await self._reach(action.address)
        life = server.lives
        work = asyncio.ensure_future(_work(server, action))
        try:
            while not work.done():
                await asyncio.wait([work], timeout=0.5)
                if server.lives != life:
                    raise ReplicaLost(f"{action.address} broke the connection")
            await work
        finally:
            # The server goes on with what it was told: only this call is over.
            work.add_done_callback(_ignore)

    async def dispute(self, address: str, term: int) -> None:
        async with self._call(address):
            await asyncio.sleep(0.002)
            await self._way.wait()
            self._servers[address].terms.dispute(self._term, term)

    async def check(self, address: str, spec: ModelSpec) -> str:
        """Every spec can be loaded."""
        return ""

    async def close(self, address: str) -> None:
        pass

    async def _reach(self, address: str) -> Server:
        await asyncio.sleep(0.002)
        await self._way.wait()
        server = self._servers[address]
        if not server.alive.is_set():
            raise ReplicaLost(f"{address} refuses the connection")
        await server.running.wait()
        server.terms.check(self._term)
        return server

    @contextlib.asynccontextmanager
    async def _call(self, address: str):
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                yield
        except TimeoutError as exc:
            raise ReplicaLost(f"{address} did not answer in time") from exc


async def _work(server: Server, action: Action) -> None:
    if isinstance(action, LoadAction):
        await server.load(action)
    elif isinstance(action, UnloadAction):
        await server.unload(action.model_id)
    else:
        server.update(action)


def _ignore(task: asyncio.Future[object]) -> None:
    if not task.cancelled():
        task.exception()


async def join_for_ever(server: Server, leaders: Callable[[], Sequence[Cell]]) -> None:
    """What a model server does beside serving: tell the leader that it is there."""
    while True:
        await asyncio.sleep(server.luck.uniform(3.0, 5.0))
        if not (server.alive.is_set() and server.running.is_set()):
            continue
        for cell in leaders():
            with contextlib.suppress(SaxError):
                cell.join(server.info)
