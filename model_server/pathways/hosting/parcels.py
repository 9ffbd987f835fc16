"""Arrays between islands: shards go from worker to worker, not through the front."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from model_server.pathways.hosting.executor_thread import ExecutorThread
from model_server.pathways.hosting.seam import ComingArray
from model_server.pathways.link import messages
from model_server.pathways.link.connection import Connection, connect
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.handles import UNAVAILABLE, Fault
from model_server.pathways.scheduling.merging import Buffer
from model_server.pathways.worker.parcels import Parcel

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]
Shipped = Callable[[Fault | None], None]
_KEPT_S = 60.0  # a parcel that nobody expects
_CONNECT_S = 5.0


class _Expected(NamedTuple):
    session: int
    array: ComingArray
    arrived: Callable[[], None]


class ParcelRoom:
    """Arrays that come to one worker and go from it.

    Its methods belong to the event loop; what is expected belongs to the executor's thread.
    """

    def __init__(self, thread: ExecutorThread, safety: LinkSafety, kept_s: float = _KEPT_S) -> None:
        """kept_s: how long parcels wait that nobody expects."""
        self._thread = thread
        self._safety = safety
        self._kept_s = kept_s
        self._loop = asyncio.get_running_loop()
        self._expected: dict[int, _Expected] = {}
        self._early: dict[int, list[Parcel | Fault]] = {}
        self._peers: dict[str, asyncio.Task[Peer]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Transfers that are not complete."""
        return len(self._expected) + len(self._early)

    def ship(self, ship: messages.Ship, shipped: Shipped) -> None:
        """Read an array's shards when they are computed and send them to workers."""

        def deliver(parcel: Parcel | Fault) -> None:
            self._loop.call_soon_threadsafe(self._post, ship, shipped, parcel)

        self._thread.do(lambda: self._thread.executor.send(ship.session, ship.array, deliver))

    def expect(self, expect: messages.Expect, arrived: Callable[[], None]) -> None:
        """Make an array of what comes; `arrived` is called on the loop when it is complete."""
        self._thread.do(lambda: self._receive(expect, arrived))

    def arrived(self, message: messages.ParcelHead, body: memoryview) -> None:
        """Take one sender's shards, maybe before they are expected."""
        parcel = _unpacked(message, body)
        self._thread.do(lambda: self._take(message.transfer, parcel))

    def forget(self, session: int) -> None:
        """Expect nothing more for a session."""
        self._thread.do(lambda: self._forget(session))

    def close(self) -> None:
        for task in (*self._peers.values(), *self._sending):
            task.cancel()
        for task in self._peers.values():
            if task.done() and _usable(task):
                task.result().close()

    # On the executor's thread

    def _receive(self, expect: messages.Expect, arrived: Callable[[], None]) -> None:
        array = self._thread.executor.receive(
            expect.session, expect.handle, expect.devices, expect.memory_kind or None
        )
        self._expected[expect.transfer] = _Expected(expect.session, array, arrived)
        early = self._early.pop(expect.transfer, None)
        for parcel in early or ():
            self._take(expect.transfer, parcel)
        self._settle(expect.transfer)

    def _take(self, transfer: int, parcel: Parcel | Fault) -> None:
        expected = self._expected.get(transfer)
        if expected is None:
            self._keep(transfer, parcel)
        elif isinstance(parcel, Fault):
            expected.array.fail(parcel)
        else:
            expected.array.arrive(parcel)
        self._settle(transfer)

    def _settle(self, transfer: int) -> None:
        """Tell the front once an array is complete."""
        expected = self._expected.get(transfer)
        if expected is not None and expected.array.complete:
            del self._expected[transfer]
            self._loop.call_soon_threadsafe(expected.arrived)

    def _keep(self, transfer: int, parcel: Parcel | Fault) -> None:
        if transfer not in self._early:
            self._early[transfer] = []
            self._loop.call_soon_threadsafe(self._drop_later, transfer)
        self._early[transfer].append(parcel)

    def _drop(self, transfer: int) -> None:
        self._early.pop(transfer, None)

    def _forget(self, session: int) -> None:
        for number, expected in list(self._expected.items()):
            if expected.session == session:
                expected.array.fail(Fault(1, "its session has ended"))
                self._settle(number)

    # On the event loop

    def _drop_later(self, transfer: int) -> None:
        """Free what came too early, or too late: its session is gone, or its array complete."""
        drop = partial(self._drop, transfer)
        self._loop.call_later(self._kept_s, self._thread.do, drop)

    def _post(self, ship: messages.Ship, shipped: Shipped, parcel: Parcel | Fault) -> None:
        task = self._loop.create_task(self._deliver(ship, shipped, parcel))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, ship: messages.Ship, shipped: Shipped, parcel: Parcel | Fault) -> None:
        message, parts = _packed(ship.transfer, parcel)
        try:
            for address in ship.addresses:
                peer = await self._peer(address)
                peer.send(message, parts)
        except OSError as exc:
            logger.warning("an array for %s stays here: %s", ship.addresses, exc)
            shipped(Fault(UNAVAILABLE, f"an array did not reach the other island: {exc}"))
        else:
            shipped(None)

    async def _peer(self, address: str) -> Peer:
        """Return a connection to another worker, opened once. Raises OSError."""
        found = self._peers.get(address)
        if found is None or (found.done() and not _usable(found)):
            found = self._loop.create_task(self._open(address))
            self._peers[address] = found
        return await asyncio.shield(found)

    async def _open(self, address: str) -> Peer:
        async with asyncio.timeout(_CONNECT_S):  # TimeoutError is an OSError
            return await connect(address, self._protocol, self._safety.client())

    def _protocol(self) -> Peer:
        return Connection(messages.DECODER, _nothing_back, _ended)


def _nothing_back(peer: Peer, message: messages.Message, body: memoryview) -> None:
    """Workers send arrays one way; the other way has its own connection."""
    peer.close()


def _ended(peer: Peer) -> None:
    """The next array opens a new connection."""


def _usable(peer: asyncio.Task[Peer]) -> bool:
    return not peer.cancelled() and peer.exception() is None and peer.result().open


def _packed(transfer: int, parcel: Parcel | Fault) -> tuple[messages.ParcelHead, list[Buffer]]:
    if isinstance(parcel, Fault):
        return messages.ParcelHead(transfer, code=parcel.code, text=parcel.text), []
    sizes = [(place, len(data)) for place, data in parcel.shards.items()]
    message = messages.ParcelHead(transfer, parcel.kind, list(parcel.shape), parcel.division, sizes)
    return message, list(parcel.shards.values())


def _unpacked(message: messages.ParcelHead, body: memoryview) -> Parcel | Fault:
    if message.code:
        return Fault(message.code, message.text)
    shards = messages.cut(body, 0, message.shards)
    return Parcel(message.kind, tuple(message.shape), message.division, shards)
