"""Arrays on their way from one island to another: shards as bytes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxlib._jax import Device, GSPMDSharding
from jaxlib.xla_client import OpSharding

from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.worker.arrays import Arrays, host_bytes
from model_server.pathways.worker.dtypes import ifrt_kind, numpy_dtype
from model_server.pathways.worker.statuses import fault_of
from model_server.pathways.worker.values import ELSEWHERE, Arriving, Elsewhere


@dataclass(frozen=True, slots=True)
class Parcel:
    """The shards of an array that one host has."""

    kind: int  # of DTypeProto
    shape: tuple[int, ...]  # of the whole array
    division: bytes  # its OpSharding; of a replicated one, and so of one device's, it is b""
    shards: Mapping[int, bytes | memoryview]  # by place among the devices of its sharding


def packed(array: jax.Array, arrays: Arrays) -> Parcel:
    """Wait for an array and return its shards here. Raises jax's errors."""
    parts = arrays.disassembled(array)
    sharding = array.sharding._to_xla_hlo_sharding(array.ndim)
    return Parcel(
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
    """An array that is put together as its shards come, from any thread."""

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

    def arrive(self, parcel: Parcel) -> None:
        """Take shards; of those for other hosts' devices, none is needed."""
        try:
            self._take(parcel)
        except Exception as exc:
            self.fail(fault_of(exc))

    def fail(self, fault: Fault) -> None:
        self.value.set(fault)

    def _take(self, parcel: Parcel) -> None:
        dtype = numpy_dtype(parcel.kind)
        division = OpSharding()
        division.ParseFromString(parcel.division)
        whole = (
            SingleDeviceSharding(self._devices[0], memory_kind=self._memory_kind)
            if len(self._devices) == 1
            else GSPMDSharding(tuple(self._devices), division, memory_kind=self._memory_kind)
        )
        shape = whole.shard_shape(parcel.shape)
        with self._lock:
            for place, data in parcel.shards.items():
                if (device := self._devices[place]) not in self._missing:
                    continue
                self._missing.discard(device)
                host = np.ndarray(shape, dtype, data)
                self._parts[device] = self._arrays.put(host, device, self._memory_kind)
            if not self._missing:
                self.value.set(self._arrays.joined(parcel.shape, dtype, whole, self._parts))
