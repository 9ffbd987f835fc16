"""Clients' functions at a worker: arguments go to its sidecar, results to its devices.

Every process of an island has a sidecar, which gets the parts of arguments on that process's
devices.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxlib._jax import Device

from model_server.pathways.link.connection import Connection, connect
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.handles import UNAVAILABLE, Fault
from model_server.pathways.sidecar import messages
from model_server.pathways.sidecar.messages import HostArray, SidecarPlace
from model_server.pathways.worker.arrays import Arrays, Held, host_bytes
from model_server.pathways.worker.calls import Done, Result
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import ifrt_kind
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import Poisoned, fault_of
from model_server.pathways.worker.values import ELSEWHERE, Elsewhere, Session, Strings
from sax.errors import Internal, Unavailable

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]
Outcome = list[HostArray] | Fault
_CONNECT_S = 5.0


class _HeldFunction(NamedTuple):
    """A function of a client."""

    session: int
    text: bytes


class SidecarLink:
    """A worker's connection to its sidecar, made for the first function and again when it is lost.

    `load`, `call`, `drop` and `forget` may be called by any thread but the event loop's.
    """

    def __init__(
        self,
        address: str,
        safety: LinkSafety,
        place: messages.SidecarPlace,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._address = address
        self._safety = safety
        self._place = place
        self._loop = loop
        self._numbers = itertools.count(1)  # 0: the answer to SidecarPlace
        self._functions: dict[int, _HeldFunction] = {}  # to load again
        self._open: dict[tuple[Peer, int], asyncio.Future[Outcome]] = {}
        self._peer: Peer | None = None
        self._connecting = asyncio.Lock()

    def load(self, session: int, text: bytes) -> int:
        """Return the number of a function that the sidecar keeps. Raises Poisoned."""
        function = next(self._numbers)
        loading = self._load(function, _HeldFunction(session, text))
        outcome = asyncio.run_coroutine_threadsafe(loading, self._loop).result()
        if isinstance(outcome, Fault):
            raise Poisoned(outcome)
        return function

    def call(
        self,
        session: int,
        function: int,
        arguments: Sequence[HostArray],
        done: Callable[[Outcome], None],
    ) -> None:
        """Run a function after those before it; `done` is called on the event loop."""

        async def run() -> None:
            said, parts = messages.packed(arguments)
            number = next(self._numbers)
            done(await self._ask(messages.CallFunction(number, session, function, said), parts))

        asyncio.run_coroutine_threadsafe(run(), self._loop)

    def drop(self, function: int) -> None:
        def drop() -> None:
            held = self._functions.pop(function, None)
            if held is not None and self._peer is not None:
                self._peer.send(messages.DropFunction(held.session, function))

        self._loop.call_soon_threadsafe(drop)

    def forget(self, session: int) -> None:
        def forget() -> None:
            if self._peer is not None:
                self._peer.send(messages.ForgetClient(session))

        self._loop.call_soon_threadsafe(forget)

    async def _load(self, function: int, held: _HeldFunction) -> Outcome:
        outcome = await self._ask(messages.LoadFunction(next(self._numbers), function), [held.text])
        if not isinstance(outcome, Fault):
            self._functions[function] = held
        return outcome

    async def _ask(
        self, message: messages.LoadFunction | messages.CallFunction, parts: Sequence[Any]
    ) -> Outcome:
        try:
            peer = await self._connected()
        except (OSError, Unavailable) as exc:
            return Fault(UNAVAILABLE, f"no sidecar answers at {self._address}: {exc}")
        return await self._answer(peer, message, parts)

    async def _answer(self, peer: Peer, message: Any, parts: Sequence[Any] = ()) -> Outcome:
        number = 0 if isinstance(message, messages.SidecarPlace) else message.number
        answer = self._open[peer, number] = self._loop.create_future()
        peer.send(message, parts)
        return await answer

    async def _connected(self) -> Peer:
        """Connect, if there is no connection. Raises OSError, Unavailable."""
        async with self._connecting:
            if self._peer is None or not self._peer.open:
                self._peer = await self._connect()
            return self._peer

    async def _connect(self) -> Peer:
        async with asyncio.timeout(_CONNECT_S):
            peer = await connect(self._address, self._protocol, self._safety.client())
        outcome = await self._answer(peer, self._place)
        for function, held in list(self._functions.items()):
            if isinstance(outcome, Fault):
                break
            outcome = await self._answer(
                peer, messages.LoadFunction(next(self._numbers), function), [held.text]
            )
        if isinstance(outcome, Fault):
            peer.close()
            raise Unavailable(outcome.text)
        return peer

    def _protocol(self) -> Peer:
        return Connection(messages.DECODER, self._received, self._ended)

    def _received(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        match message:
            case messages.SidecarStarted():
                self._settle(peer, 0, [])
            case messages.FunctionLoaded(number):
                self._settle(peer, number, [])
            case messages.FunctionResult(number, arrays):
                self._settle(peer, number, messages.unpacked(arrays, body))
            case messages.FunctionFailed(number, code, text):
                self._settle(peer, number, Fault(code, text))
            case _:
                peer.close()

    def _settle(self, peer: Peer, number: int, outcome: Outcome) -> None:
        if (answer := self._open.pop((peer, number), None)) is not None and not answer.done():
            answer.set_result(outcome)

    def _ended(self, peer: Peer) -> None:
        lost = Fault(UNAVAILABLE, f"the sidecar at {self._address} has ended: {peer.why}")
        for of, number in list(self._open):
            if of is peer:
                self._settle(peer, number, lost)


def place_of(devices: IslandDevices) -> SidecarPlace:
    """Return the devices that this process's sidecar has to name."""
    every = [(devices.number(each), each.process_index) for each in devices.every]
    return SidecarPlace(every, sorted(map(devices.number, devices.local)))


class IslandFunctions:
    """The functions of one worker. Thread-safe."""

    def __init__(self, link: SidecarLink, devices: IslandDevices) -> None:
        self._link = link
        self._devices = devices
        self._arrays = Arrays(devices, Shardings(devices))
        self._placing = ThreadPoolExecutor(1, "results")

    def function(
        self, session: int, text: bytes, name: str, results: Sequence[Result]
    ) -> IslandFunction:
        """Load a pickled function. Raises Poisoned if the sidecar cannot."""
        try:
            number = self._link.load(session, text)
        except Poisoned as exc:
            raise Poisoned(self._named(name, exc.fault)) from exc
        return IslandFunction(self, self._link, number, name, results)

    def forget(self, session: int) -> None:
        self._link.forget(session)

    def taken(self, array: jax.Array) -> HostArray:
        """Wait for an array and return its parts here. Raises jax's errors."""
        parts = {
            self._devices.number(part.device): host_bytes(np.asarray(part), None)
            for part in self._arrays.disassembled(array)
            if not isinstance(part, Elsewhere)
        }
        return HostArray(ifrt_kind(array.dtype), array.shape, parts)

    def place(self, name: str, outcome: Outcome, results: Sequence[Result], done: Done) -> None:
        """Put what a function returned on the devices, on another thread."""
        if isinstance(outcome, Fault):
            done(self._named(name, outcome))
            return

        def place() -> None:
            try:
                done([self._placed(*each) for each in zip(outcome, results, strict=True)])
            except BaseException as exc:  # requests wait for the results
                done(fault_of(exc))

        self._placing.submit(place)

    def _placed(self, made: HostArray, result: Result) -> Held | Strings:
        if result.is_text:
            return Strings(bytes(next(iter(made.parts.values()))), len(result.sharding.device_set))
        shape, kind = result.sharding.shard_shape(result.shape), result.sharding.memory_kind
        parts: dict[Device, Held] = {}
        for number, data in made.parts.items():
            device = self._devices.device(number)
            if device in self._arrays.local:
                host = np.ndarray(shape, result.dtype, data)
                parts[device] = self._arrays.put(host, device, kind)
        wanted = result.sharding.device_set & self._arrays.local
        if parts.keys() != wanted:
            raise Internal(f"a function made {len(parts)} parts of an array of {len(wanted)}")
        if not parts:
            return ELSEWHERE
        return self._arrays.joined(result.shape, result.dtype, result.sharding, parts)

    def _named(self, name: str, fault: Fault) -> Fault:
        return Fault(fault.code, f"{name} beside island {self._devices.island}: {fault.text}")


class IslandFunction:
    """A function that the sidecar holds."""

    def __init__(
        self,
        functions: IslandFunctions,
        link: SidecarLink,
        number: int,
        name: str,
        results: Sequence[Result],
    ) -> None:
        self._functions = functions
        self._link = link
        self._number = number
        self._name = name
        self._results = results

    def start(self, of: Session, arguments: Sequence[jax.Array], done: Done) -> None:
        """Send the arguments, when they are there. Raises jax's errors."""
        taken = [self._functions.taken(each) for each in arguments]

        def returned(outcome: Outcome) -> None:
            self._functions.place(self._name, outcome, self._results, done)

        self._link.call(of.number, self._number, taken, returned)

    def close(self) -> None:
        self._link.drop(self._number)
