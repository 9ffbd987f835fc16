"""Calls that a worker carries out beside its devices; their results come some time later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import msgspec
import numpy as np
from jax.core import ShapedArray
from jaxlib._jax import Device

from model_server.islands.weight_reading import DECODER, WeightReading
from model_server.pathways.scheduling.custom_call import call_of, is_python
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.arrays import Arrays, Held
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.statuses import Refused, WrongRequest, fault_of
from model_server.pathways.worker.values import ELSEWHERE, Arriving, Elsewhere
from sax.errors import SaxError

Wanted = Callable[[], bool]  # does anybody still wait for the results?


@dataclass(frozen=True, slots=True)
class Result:
    """An array that a call makes, as its client declares it."""

    shape: tuple[int, ...]  # of the whole array
    dtype: np.dtype
    sharding: jax.sharding.Sharding
    spec: Any  # ArraySpecProto


class Function(Protocol):
    """What a call does, on a thread where it may take long."""

    def __call__(self, arguments: Sequence[jax.Array], wanted: Wanted) -> Sequence[Held]: ...


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
        threads: ThreadPoolExecutor,
    ) -> None:
        self.name = name
        self.devices = devices
        self.avals = [ShapedArray(each.shape, each.dtype) for each in results]
        self._results = results
        self._function = function
        self._threads = threads

    @property
    def here(self) -> bool:
        """Tell whether this process has a part in it."""
        return any(device.process_index == jax.process_index() for device in self.devices)

    def begin(self, arguments: Sequence[jax.Array], wanted: Wanted) -> list[Arriving]:
        coming = [Arriving() for _ in self._results]
        self._threads.submit(self._carry_out, arguments, wanted, coming)
        return coming

    def outputs(self) -> list[tuple[int, tuple[int, ...], Any]]:
        """Return the element type, shape and ShardingProto of each result."""
        return [(each.spec.dtype.kind, each.shape, each.spec.sharding) for each in self._results]

    def _carry_out(
        self, arguments: Sequence[jax.Array], wanted: Wanted, coming: Sequence[Arriving]
    ) -> None:
        values: Sequence[Held | Fault]
        try:
            values = self._function(arguments, wanted)
        except BaseException as exc:  # whoever waits must learn of it
            values = [fault_of(exc)] * len(coming)
        for each, value in zip(coming, values, strict=True):
            each.set(value)


class Calls:
    """Makes programs of calls."""

    def __init__(self, devices: IslandDevices, arrays: Arrays, reader: Reader | None) -> None:
        """reader: None: no weights are read here."""
        self._devices = devices
        self._arrays = arrays
        self._reader = reader
        self._reading = ThreadPoolExecutor(1, "weights")  # which reads with threads of its own

    def program(self, asked: Any) -> CallProgram:
        """Check the call of a CompileRequest. Raises Refused, WrongRequest, SaxError."""
        call = call_of(asked)
        devices = self._devices.devices(call.devices.device_ids)
        results = [Result(*self._arrays.spec(each), each) for each in call.output_specs]
        if is_python(call):
            raise Refused("functions of a client are not run beside the devices of this worker")
        function = self._reads(call.serialized_program_text, devices, results)
        return CallProgram(call.name, devices, results, function, self._reading)

    def _reads(
        self, text: bytes, devices: tuple[Device, ...], results: Sequence[Result]
    ) -> Function:
        if (reader := self._reader) is None:
            raise Refused("this worker reads no checkpoints: start it with --checkpoint_root")
        try:
            asked = DECODER.decode(text)
        except msgspec.MsgspecError as exc:
            raise WrongRequest(f"weights are asked for in words that are not known: {exc}") from exc
        with self._named():
            planned = reader.plan(asked, devices)
        _check_alike(planned, results)

        def read(arguments: Sequence[jax.Array], wanted: Wanted) -> Sequence[Held]:
            with self._named():
                made = reader.read(asked, planned, wanted)
            return [self._placed(*each) for each in zip(made, results, strict=True)]

        return read

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Tell in errors which island has them."""
        try:
            yield
        except SaxError as exc:
            raise type(exc)(f"island {self._devices.island}: {exc.text}") from exc

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
