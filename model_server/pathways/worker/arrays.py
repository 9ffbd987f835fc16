"""Makes, copies and takes apart arrays on an island's devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib._jax as _jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import SingleDeviceSharding
from jaxlib._jax import Device

from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.dtypes import numpy_dtype
from model_server.pathways.worker.shardings import Shardings
from model_server.pathways.worker.statuses import UnknownHandle, WrongRequest
from model_server.pathways.worker.values import ELSEWHERE, Elsewhere

# By the numbers of ArrayCopySemantics; 0, unspecified, copies.
_SEMANTICS = (
    _jax.ArrayCopySemantics.ALWAYS_COPY,
    _jax.ArrayCopySemantics.ALWAYS_COPY,
    _jax.ArrayCopySemantics.REUSE_INPUT,
    _jax.ArrayCopySemantics.DONATE_INPUT,
)
_DONATE = 3

Held = jax.Array | Elsewhere


class Arrays:
    """Works on the devices of one process; what only other hosts hold is ELSEWHERE."""

    def __init__(self, devices: IslandDevices, shardings: Shardings) -> None:
        self._devices = devices
        self._shardings = shardings
        self.local = devices.local  # this process's

    def from_buffer(self, asked: Any, buffer: bytes | memoryview) -> Held:
        """Return the array of a MakeArrayFromHostBufferRequest."""
        host = host_array(asked, buffer)
        sharding = self._shardings.read(asked.sharding, host.shape)
        if not sharding.is_fully_replicated:
            raise WrongRequest("one host buffer makes a replicated array; send one per shard")
        parts = {device: self._put(host, device, sharding) for device in sharding.device_set}
        return self.joined(host.shape, host.dtype, sharding, parts)

    def from_shards(self, spec: Any, buffers: Mapping[int, bytes | memoryview]) -> Held:
        """Return the array of one spec of a MakeArraysFromHostBufferShardsRequest."""
        shape, dtype, sharding = self.spec(spec.array_spec)
        devices = _ordered(sharding)
        parts: dict[Device, Held] = {}
        for group, told in zip(spec.addressable_shard_indices, spec.host_buffers, strict=True):
            host = host_array(told, _buffer(buffers, told.host_buffer_handle))
            for index in group.indices:
                device = devices[index]
                parts[device] = self._put(host, device, sharding)
        return self.joined(shape, dtype, sharding, parts)

    def sharding(self, spec: Any) -> jax.sharding.Sharding:
        """Return the sharding of an ArraySpecProto."""
        return self._shardings.read(spec.sharding, tuple(spec.shape.dims))

    def spec(self, spec: Any) -> tuple[tuple[int, ...], np.dtype, jax.sharding.Sharding]:
        """Return the global shape, element type and sharding of an ArraySpecProto."""
        return tuple(spec.shape.dims), numpy_dtype(spec.dtype.kind), self.sharding(spec)

    def assembled(
        self, shape: tuple[int, ...], dtype: np.dtype | None, proto: Any, parts: Sequence[Held]
    ) -> Held:
        """Return one array of single-device arrays, in the order of the sharding's devices."""
        here = [part for part in parts if not isinstance(part, Elsewhere)]
        if dtype is None:
            if not here:
                return ELSEWHERE
            dtype = here[0].dtype
        sharding = self._shardings.read(proto, shape)
        devices = _ordered(sharding)
        if len(devices) != len(parts):
            raise WrongRequest(f"{len(parts)} shards for a sharding over {len(devices)} devices")
        return self.joined(shape, dtype, sharding, dict(zip(devices, parts, strict=True)))

    def joined(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype,
        sharding: jax.sharding.Sharding,
        parts: Mapping[Device, Held],
    ) -> Held:
        """Return one array of those of single devices that are here."""
        if isinstance(sharding, SingleDeviceSharding):
            return next(iter(parts.values()))
        every = (parts.get(device, ELSEWHERE) for device in _ordered(sharding))
        here = [part for part in every if not isinstance(part, Elsewhere)]
        if not here:
            return ELSEWHERE
        aval = ShapedArray(shape, dtype)
        return _jax.ArrayImpl(aval, sharding, here, True, _skip_checks=True)

    def disassembled(self, array: jax.Array) -> list[Held]:
        """Return the single-device arrays of all its devices, in their order."""
        parts = {part.device: part for part in array._arrays}  # pyright: ignore
        return [parts.get(device, ELSEWHERE) for device in _ordered(array.sharding)]

    def replica(self, array: jax.Array) -> jax.Array:
        """Return this process's first single-device array of a replicated one."""
        return array._arrays[0]  # pyright: ignore

    def copied(self, arrays: Sequence[jax.Array], asked: Any) -> list[jax.Array]:
        """Return copies on the devices, in the memory, of a CopyArraysRequest."""
        to = self._devices.devices(asked.device_ids)
        kind = asked.memory_kind if asked.HasField("memory_kind") else None
        shardings = [_moved(each.sharding, to, kind) for each in arrays]
        lists = [_jax.DeviceList(_ordered(each)) for each in shardings]
        semantics = [_SEMANTICS[asked.copy_semantics]] * len(arrays)
        return _jax.batched_copy_array_to_devices_with_sharding(
            arrays,
            lists,
            shardings,
            semantics,  # pyright: ignore[reportArgumentType]
        )

    def undonated(self, array: jax.Array) -> jax.Array:
        """Return a copy that a program may overwrite."""
        sharding = array.sharding
        (copy,) = _jax.batched_copy_array_to_devices_with_sharding(
            [array], [_jax.DeviceList(_ordered(sharding))], [sharding], [_SEMANTICS[1]]
        )  # fmt: skip  # pyright: ignore[reportArgumentType]
        return copy

    def resharded(self, array: jax.Array, spec: Any, semantics: int) -> jax.Array:
        _, _, sharding = self.spec(spec)
        with jax.enable_x64(True):
            return jax.device_put(array, sharding, donate=semantics == _DONATE)

    def bitcast(self, array: jax.Array, spec: Any) -> Held:
        """Return the same bytes on each device as another shape and element type."""
        shape, dtype, sharding = self.spec(spec)
        shard = sharding.shard_shape(shape)
        parts: list[Held] = []
        for part in self.disassembled(array):
            if not isinstance(part, Elsewhere):
                with jax.enable_x64(True):
                    part = jnp.ravel(part).view(dtype).reshape(shard)
            parts.append(part)
        return self.joined(
            shape, dtype, sharding, dict(zip(_ordered(sharding), parts, strict=True))
        )

    def remapped(self, arrays: Sequence[jax.Array], plan: Any) -> list[Held]:
        """Return arrays of the shards of others, as a RemapPlanProto says."""
        taken = [self.disassembled(each) for each in arrays]
        made: list[list[Held]] = [
            [ELSEWHERE] * len(_ordered(self.spec(spec)[2])) for spec in plan.output_specs
        ]
        for each in plan.mappings:
            to, source = made[each.out_array], taken[each.in_array]
            for sources, targets in zip(
                _intervals(each, "from"), _intervals(each, "to"), strict=True
            ):
                for origin, target in zip(sources, targets, strict=True):
                    to[target] = source[origin]
        return [
            self.assembled(
                tuple(spec.shape.dims), numpy_dtype(spec.dtype.kind), spec.sharding, parts
            )
            for spec, parts in zip(plan.output_specs, made, strict=True)
        ]

    def put(self, host: np.ndarray, device: Device, memory_kind: str | None) -> jax.Array:
        """Return an array of one device of this process."""
        aval = ShapedArray(host.shape, host.dtype)
        sharding = SingleDeviceSharding(device, memory_kind=memory_kind)
        return _jax.batched_device_put(aval, sharding, [host], [device], True, enable_x64=True)  # pyright: ignore

    def _put(self, host: np.ndarray, device: Device, like: jax.sharding.Sharding) -> Held:
        return self.put(host, device, like.memory_kind) if device in self.local else ELSEWHERE


def host_array(told: Any, buffer: bytes | memoryview) -> np.ndarray:
    """Return a buffer's array, as its dtype, shape and byte_strides say. Raises WrongRequest."""
    dtype, shape = numpy_dtype(told.dtype.kind), tuple(told.shape.dims)
    strides = tuple(told.byte_strides.strides) if told.HasField("byte_strides") else None
    try:
        return np.ndarray(shape, dtype, buffer, strides=strides)
    except (TypeError, ValueError) as exc:
        raise WrongRequest(
            f"a host buffer of {len(buffer)} bytes is no {dtype.name}{list(shape)}: {exc}"
        ) from exc


def host_bytes(array: np.ndarray, strides: Sequence[int] | None) -> bytes | memoryview:
    """Return an array's bytes, in row-major order or with the strides that were asked for."""
    if strides is None:
        flat = np.ascontiguousarray(array)
        return flat.reshape(-1).view(np.uint8).data if flat.nbytes else b""
    size = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True)) + array.itemsize
    if array.size == 0 or any(each < 0 for each in strides) or size > 64 * max(1, array.nbytes):
        raise WrongRequest(f"strides {list(strides)} are none for {list(array.shape)}")
    buffer = bytearray(size)
    np.ndarray(array.shape, array.dtype, buffer, strides=tuple(strides))[...] = array
    return bytes(buffer)


def _buffer(buffers: Mapping[int, bytes | memoryview], handle: int) -> bytes | memoryview:
    if (found := buffers.get(handle)) is None:
        raise UnknownHandle(f"there is no host buffer {handle:#x} in this session")
    return found


def _ordered(sharding: Any) -> tuple[Device, ...]:
    return tuple(sharding._device_assignment)


def _moved(sharding: Any, to: tuple[Device, ...], kind: str | None) -> jax.sharding.Sharding:
    """Return the same division over other devices (none: the same), in another memory or not."""
    devices, kind = to or _ordered(sharding), kind or sharding.memory_kind
    if isinstance(sharding, SingleDeviceSharding):
        return SingleDeviceSharding(devices[0], memory_kind=kind)
    return _jax.GSPMDSharding(devices, sharding._hlo_sharding, memory_kind=kind)


def _intervals(mapping: Any, side: str) -> list[range]:
    bounds: list[Callable[..., Any]] = [
        getattr(mapping, f"{side}_{name}") for name in ("start", "end", "step")
    ]  # pyright: ignore[reportAssignmentType]
    return [range(*each) for each in zip(*bounds, strict=True)]  # pyright: ignore
