"""A cell of real processes on this machine: admin servers, model servers, and their store."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from sax.auth.credentials import acting_as
from sax.errors import AdminUnavailable, DeadlineExceeded, NotLeading, SaxError
from sax.names import CellId
from sax.proto import admin_pb2, modelet_pb2
from sax.types import PublishedModel, ServerStatus
from sax.wire import rpc
from sax.wire.models import decode_published
from sax.wire.servers import decode_status
from tests.identities import Identities
from tests.processes import free_ports
from tests.tools.chaos.child import Child
from tests.tools.chaos.stores import Store, open_store

CELL = CellId("test")
OPERATOR, ADMIN, SERVER = "operator", "admin", "server"
SNAPSHOT_EVERY = 7
_START_S = 60.0
_ASK_S = 1.0


@dataclass
class Admin:
    """One admin server."""

    child: Child
    address: str
    number: int


@dataclass
class Server:
    """One model server."""

    child: Child
    address: str
    broken: Path  # while it is there, loads fail


@dataclass
class RealCell:
    """All its processes, and how they are asked."""

    folder: Path
    store: Store
    admins: list[Admin]
    servers: list[Server]
    tokens: dict[str, str]

    @property
    def children(self) -> list[Child]:
        own = [one.child for one in (*self.admins, *self.servers)]
        return [*own, self.store.child] if self.store.child is not None else own

    @property
    def addresses(self) -> list[str]:
        return [admin.address for admin in self.admins]

    async def models_of(self, admin: Admin) -> list[PublishedModel] | None:
        """What this one tells of the cell; None if it does not lead, or does not answer."""
        try:
            request = admin_pb2.ListRequest(model_id=str(CELL))
            reply = await self._ask(
                admin.address, "/sax.Admin/List", request, admin_pb2.ListResponse
            )
        except (AdminUnavailable, DeadlineExceeded):
            return None
        return [decode_published(model) for model in reply.published_models]

    async def leaders(self) -> list[tuple[Admin, list[PublishedModel]]]:
        """Whoever says that it leads."""
        told = await asyncio.gather(*map(self.models_of, self.admins))
        pairs = zip(self.admins, told, strict=True)
        return [(admin, models) for admin, models in pairs if models is not None]

    async def leader_by(self, admin: Admin) -> str:
        """Who leads, as this one says; "" if it does not know, or does not answer."""
        try:
            request = admin_pb2.ListRequest(model_id=str(CELL))
            await self._ask(admin.address, "/sax.Admin/List", request, admin_pb2.ListResponse)
        except NotLeading as exc:
            return exc.param or ""
        except (AdminUnavailable, DeadlineExceeded):
            return ""
        return admin.address

    async def status_of(self, server: Server) -> ServerStatus:
        """What a model server holds, as it says itself. Raises SaxError."""
        request = modelet_pb2.GetStatusRequest(include_failure_reasons=True)
        reply = await self._ask(
            server.address, "/sax.Modelet/GetStatus", request, modelet_pb2.GetStatusResponse
        )
        return decode_status(reply)

    async def _ask(self, address, path, request, reply):
        """Over a connection of its own: what happened to others tells nothing of this one."""
        with acting_as(self.tokens[OPERATOR]):
            channel: grpc.aio.Channel = rpc.open_channel(address)
            async with channel:
                return await rpc.call(
                    channel,
                    path,
                    request,
                    reply,
                    peer=address,
                    timeout_s=_ASK_S,
                    unavailable=AdminUnavailable,
                )

    async def until_up(self) -> None:
        """Until one admin server leads and every model server has joined it."""
        async with asyncio.timeout(_START_S):
            while not await self._up():
                for child in self.children:
                    child.check()
                await asyncio.sleep(0.2)

    async def _up(self) -> bool:
        try:
            await asyncio.gather(*map(self.status_of, self.servers))
        except SaxError:
            return False
        return len(await self.leaders()) == 1


@asynccontextmanager
async def real_cell(
    kind: str,
    folder: Path,
    *,
    admins: int,
    servers: int,
    callers: Sequence[str],
    seed: int,
    step_s: float = 0.0,
) -> AsyncGenerator[RealCell]:
    """A cell that answers; a token takes its model servers `step_s`. Every process of it is gone at
    the end."""
    identities = Identities(folder, OPERATOR, ADMIN, SERVER, *callers)
    async with open_store(kind, folder, admins) as store, AsyncExitStack() as stack:
        cell = _make(folder, store, identities, admins, servers, random.Random(seed), step_s)
        # Before the proxies close: who hangs on one must be gone.
        for child in cell.children:
            if child is not store.child:
                stack.callback(child.end)
                child.start()
        await cell.until_up()
        yield cell


def _make(
    folder: Path,
    store: Store,
    identities: Identities,
    admins: int,
    servers: int,
    luck: random.Random,
    step_s: float,
) -> RealCell:
    ports = free_ports(admins + servers)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    env = {"SAX_TOKEN": identities.tokens[ADMIN]}
    ours = [
        Admin(_admin(folder, n, ports[n], store, identities.path, env), addresses[n], n)
        for n in range(admins)
    ]
    env = {"SAX_TOKEN": identities.tokens[SERVER]}
    theirs: list[Server] = []
    for n in range(servers):
        broken, admin = folder / f"broken-{n}", ",".join(addresses[:admins])
        command = [
            *(sys.executable, "-m", "tests.tools.chaos.model_server", "--admin", admin),
            *(
                f"--port={ports[admins + n]}",
                f"--broken={broken}",
                f"--seed={luck.randrange(2**31)}",
                f"--step_s={step_s}",
            ),
        ]
        child = Child(f"server-{n}", command, folder, env)
        theirs.append(Server(child, addresses[admins + n], broken))
    return RealCell(folder, store, ours, theirs, identities.tokens)


def _admin(
    folder: Path, n: int, port: int, store: Store, tokens: Path, env: dict[str, str]
) -> Child:
    place = store.seen[n]
    command = [
        *(sys.executable, "-m", "admin_server", "--sax_cell", str(CELL), f"--port={port}"),
        *("--status_port=-1", f"--fs_root={place.url}", f"--snapshot_every={SNAPSHOT_EVERY}"),
        *("--beat_s=0.3", "--store_timeout_s=4", f"--tokens={tokens}", "--admin_acl=*"),
    ]
    return Child(f"admin-{n}", command, folder, {**env, **place.env})
