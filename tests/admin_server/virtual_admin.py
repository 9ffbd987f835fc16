"""An admin server on the virtual clock: the real cell and calls, between fakes without sockets.

What crosses a network here crosses it as bytes, and takes a moment that nobody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio
import pytest

from admin_server.cell.cell import Cell
from admin_server.cell.modelets import GrpcModelets
from admin_server.cell.reconciler import Timing
from admin_server.config import AdminConfig
from admin_server.leadership import AdminRole
from admin_server.ledger.ledger import Ledger
from admin_server.process import Running
from admin_server.storage.store_check import StoreHealth
from sax.proto import admin_pb2, control_pb2, modelet_pb2
from sax.wire.servers import decode_join, encode_join
from tests.admin_server.fake_modelet import FakeModelet
from tests.simulation.store import Bucket, View
from tests.virtual_loop import now

_LATENCY_S = 0.001


class Wires:
    """Who answers at which address, and whom model servers join."""

    def __init__(self) -> None:
        self.modelets: dict[str, WiredModelet] = {}
        self.cells: dict[int, Cell] = {}  # by port
        self.opened = 0  # addresses given away
        self.store = View(Bucket(), random.Random(0))  # of the last leader

    def open_channel(self, address: str) -> WiredChannel:
        """Stand in for `sax.wire.rpc.open_channel`."""
        return WiredChannel(self, address)

    @asynccontextmanager
    async def leading(self, config: AdminConfig, timing: Timing) -> AsyncGenerator[Running]:
        """Run the cell of a leader over an empty store."""
        health, luck, port = StoreHealth(now), random.Random(0), len(self.cells) + 1
        store, address = View(Bucket(), luck), f"127.0.0.1:{port}"
        self.store = store
        ledger = await Ledger.open(store, config.cell, snapshot_every=100, health=health)
        term = await ledger.take_lead("me", address, now())
        modelets, scaling = GrpcModelets(term), config.scaling
        cell = Cell(ledger, modelets, now, timing=timing, scaling=scaling, jitter=luck)
        role = AdminRole(config.cell, health)
        role.take(cell, term, address)
        self.cells[port] = cell
        life = asyncio.create_task(cell.reconciler.run())
        try:
            yield Running(role, port, None, life)
        finally:
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await life
            await cell.disputes.close()
            await cell.reconciler.close()


class WiredModelet(FakeModelet):
    """A fake model server that answers over wires."""

    def __init__(self, wires: Wires, **options: Any) -> None:
        super().__init__(**options)
        self._wires = wires
        self._under_way: set[asyncio.Task[Any]] = set()
        wires.opened += 1
        self.address = f"127.0.0.1:{10_000 + wires.opened}"

    async def start(self) -> WiredModelet:
        self._wires.modelets[self.address] = self
        return self

    async def cut_off(self) -> None:
        self._wires.modelets.pop(self.address, None)
        for call in self._under_way:
            call.cancel()

    async def join(self, port: int) -> None:
        await asyncio.sleep(_LATENCY_S)
        sent = encode_join(self.info).SerializeToString()
        await self._wires.cells[port].admit(decode_join(admin_pb2.JoinRequest.FromString(sent)))

    async def answer(self, method: str, request: bytes) -> bytes:
        """Serve one call. Ends with UNAVAILABLE if this server is cut off before its answer."""
        protocol = control_pb2 if method in ("Dispute", "Check") else modelet_pb2
        message = getattr(protocol, f"{method}Request").FromString(request)
        call = asyncio.ensure_future(getattr(self, method)(message, None))
        self._under_way.add(call)
        call.add_done_callback(self._under_way.discard)
        await asyncio.wait([call])
        if call.cancelled():
            _refuse(self.address)
        return call.result().SerializeToString()


class WiredChannel:
    """A channel of gRPC as far as `sax.wire.rpc.call` uses one; a SaxError crosses it as it is."""

    def __init__(self, wires: Wires, address: str) -> None:
        self._wires = wires
        self._address = address

    def unary_unary(self, path: str, serialize: Any, parse: Any) -> Any:
        async def call(request: Any, timeout: float | None, metadata: Any) -> Any:  # noqa: ASYNC109
            await asyncio.sleep(_LATENCY_S)
            modelet = self._wires.modelets.get(self._address) or _refuse(self._address)
            answer = modelet.answer(path.rpartition("/")[2], serialize(request))
            return parse(await asyncio.wait_for(answer, timeout))

        return call

    async def close(self) -> None:
        """Nothing is open."""


def _refuse(address: str) -> NoReturn:
    nothing = grpc.aio.Metadata()
    code, text = grpc.StatusCode.UNAVAILABLE, f"nobody answers at {address}"
    raise grpc.aio.AioRpcError(code, nothing, nothing, text)


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> Wires:
    """Joins the calls of this process's cells to its fake model servers."""
    made = Wires()
    monkeypatch.setattr("admin_server.cell.modelets.open_channel", made.open_channel)
    return made
