"""Functions of clients as a worker has them run: arguments to its sidecar, results to its devices.

Every process of an island has a sidecar, which gets the parts of arguments that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from jaxlib._jax import Device

from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.sidecar.link import Outcome, SidecarLink
from model_server.pathways.sidecar.messages import HostArray, SidecarPlace
from model_server.pathways.worker.arrays import Arrays, Held, host_bytes
from model_server.pathways.worker.calls import Done
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import ifrt_kind
from model_server.pathways.worker.results import Result
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import Poisoned, fault_of
from model_server.pathways.worker.values import ELSEWHERE, Elsewhere, Session, Strings
from sax.errors import Internal


def place_of(devices: IslandDevices) -> SidecarPlace:
    """Return where a sidecar beside this process is."""
    every = [(devices.number(each), each.process_index) for each in devices.every]
    return SidecarPlace(every, sorted(map(devices.number, devices.local)))


class IslandFunctions:
    """Those of one worker. Thread-safe."""

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
            except BaseException as exc:  # whoever waits must learn of it
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
