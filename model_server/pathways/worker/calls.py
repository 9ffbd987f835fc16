"""Calls in place of programs: a worker reads weights or has a sidecar run a function for them.

Their results arrive later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import msgspec
import numpy as np
from jaxlib._jax import Device

from model_server.loading.beside_devices.weight_reading import DECODER, WeightReading
from model_server.pathways.scheduling.custom_call import call_of, is_python
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.arrays import Arrays, Held
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import STRING
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import Refused, WrongRequest, fault_of
from model_server.pathways.worker.values import (
    ELSEWHERE,
    Arriving,
    Elsewhere,
    HostCopy,
    Session,
    Strings,
)
from sax.errors import SaxError


@dataclass(frozen=True, slots=True)
class Result:
    """An array that a call makes."""

    shape: tuple[int, ...]  # of the whole array
    dtype: np.dtype
    sharding: jax.sharding.Sharding
    spec: Any  # ArraySpecProto

    @property
    def is_text(self) -> bool:
        """True for strings, which tell clients the structure that a function returned."""
        return self.spec.dtype.kind == STRING


def _result(spec: Any, arrays: Arrays) -> Result:
    """Return the result of an ArraySpecProto. Raises Refused."""
    if spec.dtype.kind == STRING:
        return Result((), np.dtype(np.dtypes.StringDType()), arrays.sharding(spec), spec)
    return Result(*arrays.spec(spec), spec)


Wanted = Callable[[], bool]  # False once the client is gone
Done = Callable[[Sequence[Held | Strings] | Fault], None]


class Function(Protocol):
    """Carries out one kind of call."""

    def start(self, of: Session, arguments: Sequence[jax.Array], done: Done) -> None:
        """Carry it out, and call `done` once, on any thread. May take long; may raise."""
        ...

    def close(self) -> None: ...


class Python(Protocol):
    """Makes functions of pickled ones: `sidecar.island_functions`."""

    def function(
        self, session: int, text: bytes, name: str, results: Sequence[Result]
    ) -> Function: ...

    def forget(self, session: int) -> None: ...


class Reader(Protocol):
    """Reads weights: `loading.beside_devices.weight_reader.WeightReader`."""

    def plan(self, asked: WeightReading, devices: Sequence[Device]) -> Any: ...

    def read(self, asked: WeightReading, planned: Any, wanted: Wanted) -> list[jax.Array]: ...


class CallProgram:
    """A call where a client expects a compiled program."""

    donated: frozenset[int] = frozenset()

    def __init__(
        self,
        name: str,
        devices: tuple[Device, ...],
        results: Sequence[Result],
        function: Function,
        thread: ThreadPoolExecutor,
    ) -> None:
        self.name = name
        self.devices = devices
        self.avals = results
        self._function = function
        self._thread = thread

    @property
    def here(self) -> bool:
        """Tell whether this process has a part in it."""
        return any(device.process_index == jax.process_index() for device in self.devices)

    def begin(
        self, of: Session, arguments: Sequence[jax.Array], fetches: Sequence[HostCopy]
    ) -> list[Arriving]:
        """Carry the call out later. fetches: of its arguments, which end once they were read."""
        coming = [Arriving() for _ in self.avals]

        def done(outcome: Sequence[Held | Strings] | Fault) -> None:
            values = [outcome] * len(coming) if isinstance(outcome, Fault) else outcome
            for each, value in zip(coming, values, strict=True):
                each.set(value)

        def start() -> None:
            try:
                self._function.start(of, arguments, done)
            except BaseException as exc:  # requests wait for the results
                done(fault_of(exc))
            finally:
                for fetch in fetches:
                    fetch.leave()

        self._thread.submit(start)
        return coming

    def outputs(self, shardings: Shardings) -> list[tuple[int, tuple[int, ...], Any]]:
        """Return the element type, shape and ShardingProto of each result."""
        return [(each.spec.dtype.kind, each.shape, each.spec.sharding) for each in self.avals]

    def close(self) -> None:
        """Let the function go, after the calls before."""
        self._thread.submit(self._function.close)


class Calls:
    """Makes programs of calls."""

    def __init__(
        self,
        devices: IslandDevices,
        arrays: Arrays,
        reader: Reader | None = None,
        python: Python | None = None,
    ) -> None:
        """reader: None: no weights are read here. python: None: no functions are run."""
        self._devices = devices
        self._arrays = arrays
        self._reader = reader
        self._python = python
        self._reading = ThreadPoolExecutor(1, "weights")  # the reader has threads itself
        self._sending = ThreadPoolExecutor(1, "arguments")  # in their order

    def program(self, of: Session, asked: Any) -> CallProgram:
        """Check the call of a CompileRequest. Raises Refused, WrongRequest, SaxError, Poisoned."""
        call = call_of(asked)
        devices = self._devices.devices(call.devices.device_ids)
        results = [_result(each, self._arrays) for each in call.output_specs]
        text = call.serialized_program_text
        if is_python(call):
            if self._python is None:
                raise Refused(
                    "functions are not run beside the devices of this worker: start a sidecar, "
                    "and the worker with --sidecar_address"
                )
            function = self._python.function(of.number, text, call.name, results)
            return CallProgram(call.name, devices, results, function, self._sending)
        function = self._reads(text, devices, results)
        return CallProgram(call.name, devices, results, function, self._reading)

    def forget(self, session: int) -> None:
        if self._python is not None:
            self._sending.submit(self._python.forget, session)

    def _reads(
        self, text: bytes, devices: tuple[Device, ...], results: Sequence[Result]
    ) -> Function:
        if (reader := self._reader) is None:
            raise Refused("this worker reads no checkpoints: start it with --checkpoint_root")
        try:
            asked = DECODER.decode(text)
        except msgspec.MsgspecError as exc:
            raise WrongRequest(f"weights are asked for in words that are not known: {exc}") from exc
        with _named(self._devices.island):
            planned = reader.plan(asked, devices)
        _check_alike(planned, results)

        def read(wanted: Wanted) -> Sequence[Held]:
            with _named(self._devices.island):
                made = reader.read(asked, planned, wanted)
            return [self._placed(*each) for each in zip(made, results, strict=True)]

        return _Reading(read)

    def _placed(self, array: jax.Array, result: Result) -> Held:
        """Return the same array in the sharding that its client knows."""
        parts: dict[Device, Held] = {
            part.device: part
            for part in self._arrays.disassembled(array)
            if not isinstance(part, Elsewhere)
        }
        if not parts:
            return ELSEWHERE
        return self._arrays.joined(result.shape, result.dtype, result.sharding, parts)


class _Reading:
    """A call that reads weights."""

    def __init__(self, read: Callable[[Wanted], Sequence[Held]]) -> None:
        self._read = read

    def start(self, of: Session, arguments: Sequence[jax.Array], done: Done) -> None:
        done(self._read(lambda: not of.ended.is_set()))

    def close(self) -> None:
        """Nothing is kept."""


@contextmanager
def _named(island: int) -> Iterator[None]:
    """Tell in errors which island has them."""
    try:
        yield
    except SaxError as exc:
        raise type(exc)(f"island {island}: {exc.text}") from exc


def _check_alike(planned: Any, results: Sequence[Result]) -> None:
    """Raises Refused if weights are declared here in another way than the controller knows."""
    leaves = list(planned.leaves)
    if len(leaves) != len(results):
        raise Refused(f"{len(leaves)} arrays of weights here and {len(results)} at the controller")
    for leaf, result in zip(leaves, results, strict=True):
        sharding = planned.layout.sharding(leaf.shape, leaf.axes, leaf.bits)
        alike = (
            leaf.shape == result.shape
            and np.dtype(leaf.dtype) == result.dtype
            and sharding.devices_indices_map(leaf.shape)
            == result.sharding.devices_indices_map(leaf.shape)
        )
        if not alike:
            raise Refused(
                f"weights are {leaf.dtype}{list(leaf.shape)} here and "
                f"{result.dtype}{list(result.shape)} at the controller: give both the same sax "
                "and processors with the same instructions"
            )
