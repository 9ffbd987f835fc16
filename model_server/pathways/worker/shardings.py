"""Shardings between the protocol and jax. Arrays have one of jax's; programs know theirs."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax
import jaxlib._jax as _jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxlib.xla_client import OpSharding

from model_server.pathways import protocol as messages
from model_server.pathways.protocol import (
    ConcreteEvenShardingProto,
    HloShardingProto,
    ShardingProto,
    SingleDeviceShardingProto,
)
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.statuses import Refused

_PREFIX = "xla::ifrt::"
_MOST_KEPT = 4096  # shardings that were read before: a model has a few dozen


class Shardings:
    """Reads and writes shardings over one island's devices."""

    def __init__(self, devices: IslandDevices) -> None:
        self._devices = devices
        self._read = lru_cache(_MOST_KEPT)(self._read_data)

    def read(self, proto: Any, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        """Return a ShardingProto's sharding. Raises Refused and WrongRequest."""
        serialized = proto.serialized_sharding
        return self._read(serialized.type_name, serialized.data, shape)

    def _read_data(
        self, type_name: str, data: bytes, shape: tuple[int, ...]
    ) -> jax.sharding.Sharding:
        match type_name.removeprefix(_PREFIX):
            case "SingleDeviceSharding":
                return self._single(SingleDeviceShardingProto.FromString(data))
            case "HloSharding":
                return self._hlo(HloShardingProto.FromString(data))
            case "ConcreteEvenSharding":
                return self._even(ConcreteEvenShardingProto.FromString(data), shape)
            case "ConcreteSharding":
                return self._concrete(messages.ConcreteShardingProto.FromString(data), shape)
        raise Refused(
            f"arrays sharded by {type_name} are not offered here; shard them over a mesh "
            "(jax.sharding.NamedSharding)"
        )

    def _single(self, proto: Any) -> jax.sharding.Sharding:
        return SingleDeviceSharding(self._devices.device(proto.device_id), memory_kind=_kind(proto))

    def _hlo(self, proto: Any) -> jax.sharding.Sharding:
        sharding = OpSharding()
        sharding.ParseFromString(proto.xla_op_sharding.SerializeToString())
        return self._over(proto, sharding)

    def _even(self, proto: Any, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        """Return the sharding of shards of one shape, which lie in the order of the devices."""
        if proto.is_fully_replicated:
            return self._over(proto, _replicated())
        return self._over(proto, _tiled(shape, tuple(proto.shard_shape.dims)))

    def _concrete(self, proto: Any, shape: tuple[int, ...]) -> jax.sharding.Sharding:
        shapes = {tuple(each.dims) for each in proto.shard_shapes}
        if len(shapes) != 1:
            raise Refused("arrays of shards of several shapes are not offered here; pad them")
        return self._over(proto, _tiled(shape, shapes.pop()))

    def _over(self, proto: Any, sharding: Any) -> jax.sharding.Sharding:
        devices = self._devices.devices(proto.devices.device_ids)
        return _jax.GSPMDSharding(devices, sharding, memory_kind=_kind(proto))

    def written(self, sharding: jax.sharding.Sharding, dimensions: int) -> Any:
        """Return the ShardingProto of an array's sharding."""
        proto = ShardingProto()
        told = proto.serialized_sharding
        if isinstance(sharding, SingleDeviceSharding):
            (device,) = sharding.device_set
            single = SingleDeviceShardingProto(
                device_id=self._devices.number(device), memory_kind=sharding.memory_kind
            )
            told.type_name, told.data = f"{_PREFIX}SingleDeviceSharding", single.SerializeToString()
            return proto
        hlo = HloShardingProto(memory_kind=sharding.memory_kind)
        hlo.devices.device_ids.extend(self._devices.numbers(sharding._device_assignment))
        op = sharding._to_xla_hlo_sharding(dimensions).to_proto()
        hlo.xla_op_sharding.ParseFromString(op.SerializeToString())
        told.type_name, told.data = f"{_PREFIX}HloSharding", hlo.SerializeToString()
        return proto


def _kind(proto: Any) -> str | None:
    return proto.memory_kind if proto.HasField("memory_kind") else None


def _replicated() -> Any:
    sharding = OpSharding()
    sharding.type = OpSharding.Type.REPLICATED
    return sharding


def _tiled(shape: tuple[int, ...], shard: tuple[int, ...]) -> Any:
    tiles = [-(-whole // part) if part else 1 for whole, part in zip(shape, shard, strict=True)]
    if math.prod(tiles) == 1:
        return _replicated()
    sharding = OpSharding()
    sharding.type = OpSharding.Type.OTHER
    sharding.tile_assignment_dimensions = tiles
    sharding.tile_assignment_devices = np.arange(math.prod(tiles)).tolist()
    return sharding
