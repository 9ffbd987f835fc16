"""Transfers of arrays between islands: shards as bytes, from worker to worker.

They do not pass through the proxy server.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxlib._jax import Device, GSPMDSharding
from jaxlib.xla_client import OpSharding

from model_server.pathways.link import messages
from model_server.pathways.link.connection import Connection, connect
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.answers import Buffer
from model_server.pathways.scheduling.handles import UNAVAILABLE, Fault
from model_server.pathways.worker.arrays import Arrays, host_bytes
from model_server.pathways.worker.dtypes import ifrt_kind, numpy_dtype
from model_server.pathways.worker.executor_thread import ComingArray, ExecutorThread, TransferPart
from model_server.pathways.worker.statuses import fault_of
from model_server.pathways.worker.values import ELSEWHERE, Arriving, Elsewhere

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]
Shipped = Callable[[Fault | None], None]
_KEPT_S = 60.0  # parts of arrays that are not expected
_CONNECT_S = 5.0


def packed(array: jax.Array, arrays: Arrays) -> TransferPart:
    """Wait for an array and return its shards here. Raises jax's errors."""
    parts = arrays.disassembled(array)
    sharding = array.sharding._to_xla_hlo_sharding(array.ndim)
    return TransferPart(
        ifrt_kind(array.dtype),
        array.shape,
        sharding.to_proto().SerializeToString(),
        {
            place: host_bytes(np.asarray(part), None)
            for place, part in enumerate(parts)
            if not isinstance(part, Elsewhere)
        },
    )


class Receiving:
    """An array that is assembled as its shards arrive, on any thread."""

    def __init__(self, arrays: Arrays, devices: Sequence[Device], memory_kind: str | None) -> None:
        """devices: of the whole array, in the order of its shards."""
        self.value = Arriving()
        self._arrays = arrays
        self._devices = devices
        self._memory_kind = memory_kind
        self._parts: dict[Device, jax.Array] = {}
        self._missing = set(devices) & arrays.local
        self._lock = threading.Lock()
        if not self._missing:
            self.value.set(ELSEWHERE)

    @property
    def complete(self) -> bool:
        """Tell whether it, or an error in its place, is there."""
        return self.value.come

    def arrive(self, part: TransferPart) -> None:
        """Take shards; those for other hosts' devices are dropped."""
        try:
            self._take(part)
        except Exception as exc:
            self.fail(fault_of(exc))

    def fail(self, fault: Fault) -> None:
        self.value.set(fault)

    def _take(self, part: TransferPart) -> None:
        dtype = numpy_dtype(part.kind)
        division = OpSharding()
        division.ParseFromString(part.division)
        whole = (
            SingleDeviceSharding(self._devices[0], memory_kind=self._memory_kind)
            if len(self._devices) == 1
            else GSPMDSharding(tuple(self._devices), division, memory_kind=self._memory_kind)
        )
        shape = whole.shard_shape(part.shape)
        with self._lock:
            for place, data in part.shards.items():
                if (device := self._devices[place]) not in self._missing:
                    continue
                self._missing.discard(device)
                host = np.ndarray(shape, dtype, data)
                self._parts[device] = self._arrays.put(host, device, self._memory_kind)
            if not self._missing:
                self.value.set(self._arrays.joined(part.shape, dtype, whole, self._parts))


class _Expected(NamedTuple):
    session: int
    array: ComingArray
    arrived: Callable[[], None]


class ArrayTransfers:
    """Arrays that arrive at one worker and leave it.

    The methods belong to the event loop; expected arrays belong to the executor's thread.
    """

    def __init__(self, thread: ExecutorThread, safety: LinkSafety, kept_s: float = _KEPT_S) -> None:
        """kept_s: how long parts wait for the request that expects their array."""
        self._thread = thread
        self._safety = safety
        self._kept_s = kept_s
        self._loop = asyncio.get_running_loop()
        self._expected: dict[int, _Expected] = {}
        self._early: dict[int, list[TransferPart | Fault]] = {}
        self._peers: dict[str, asyncio.Task[Peer]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Transfers that are not complete."""
        return len(self._expected) + len(self._early)

    def ship(self, ship: messages.Ship, shipped: Shipped) -> None:
        """Read an array's shards when they are computed and send them to workers."""

        def deliver(part: TransferPart | Fault) -> None:
            self._loop.call_soon_threadsafe(self._post, ship, shipped, part)

        self._thread.do(lambda: self._thread.executor.send(ship.session, ship.array, deliver))

    def expect(self, expect: messages.Expect, arrived: Callable[[], None]) -> None:
        """Assemble an array as it arrives; `arrived` is called on the loop when it is complete."""
        self._thread.do(lambda: self._receive(expect, arrived))

    def arrived(self, message: messages.TransferHead, body: memoryview) -> None:
        """Take one sender's shards, maybe before they are expected."""
        part = _unpacked(message, body)
        self._thread.do(lambda: self._take(message.transfer, part))

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
        for part in early or ():
            self._take(expect.transfer, part)
        self._settle(expect.transfer)

    def _take(self, transfer: int, part: TransferPart | Fault) -> None:
        expected = self._expected.get(transfer)
        if expected is None:
            self._keep(transfer, part)
        elif isinstance(part, Fault):
            expected.array.fail(part)
        else:
            expected.array.arrive(part)
        self._settle(transfer)

    def _settle(self, transfer: int) -> None:
        """Tell the proxy server once an array is complete."""
        expected = self._expected.get(transfer)
        if expected is not None and expected.array.complete:
            del self._expected[transfer]
            self._loop.call_soon_threadsafe(expected.arrived)

    def _keep(self, transfer: int, part: TransferPart | Fault) -> None:
        if transfer not in self._early:
            self._early[transfer] = []
            self._loop.call_soon_threadsafe(self._drop_later, transfer)
        self._early[transfer].append(part)

    def _forget(self, session: int) -> None:
        for number, expected in list(self._expected.items()):
            if expected.session == session:
                expected.array.fail(Fault(1, "its session has ended"))
                self._settle(number)

    # On the event loop

    def _drop_later(self, transfer: int) -> None:
        """Free parts that no request expects: the session has ended, or the array is complete."""
        self._loop.call_later(
            self._kept_s, self._thread.do, partial(self._early.pop, transfer, None)
        )

    def _post(self, ship: messages.Ship, shipped: Shipped, part: TransferPart | Fault) -> None:
        task = self._loop.create_task(self._deliver(ship, shipped, part))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(
        self, ship: messages.Ship, shipped: Shipped, part: TransferPart | Fault
    ) -> None:
        message, parts = _packed(ship.transfer, part)
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


def _packed(
    transfer: int, part: TransferPart | Fault
) -> tuple[messages.TransferHead, list[Buffer]]:
    if isinstance(part, Fault):
        return messages.TransferHead(transfer, code=part.code, text=part.text), []
    sizes = [(place, len(data)) for place, data in part.shards.items()]
    message = messages.TransferHead(transfer, part.kind, list(part.shape), part.division, sizes)
    return message, list(part.shards.values())


def _unpacked(message: messages.TransferHead, body: memoryview) -> TransferPart | Fault:
    if message.code:
        return Fault(message.code, message.text)
    shards = messages.cut(body, 0, message.shards)
    return TransferPart(message.kind, tuple(message.shape), message.division, shards)
