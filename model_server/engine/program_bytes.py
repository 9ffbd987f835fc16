"""Serialises a compiled program to bytes and loads it onto this process's devices.

The bytes are a pickle with machine code in it, so loading them runs code: load only bytes from a
trusted source.
"""

from __future__ import annotations

import pickle
from typing import Any

import jax
from jax.experimental import serialize_executable


def to_bytes(program: Any) -> bytes:
    """Serialise a program. Raises whatever the backend raises if it cannot."""
    devices = [device.id for device in _devices(program)]
    return pickle.dumps((devices, serialize_executable.serialize(program)))


def from_bytes(body: bytes) -> Any:
    """Load the program onto the devices with the same ids. Raises anything on failure."""
    ids, serialized = pickle.loads(body)
    by_id = {device.id: device for device in jax.devices()}
    devices = [by_id[each] for each in ids]
    return serialize_executable.deserialize_and_load(*serialized, execution_devices=devices)


def _devices(program: Any) -> list[Any]:
    """Devices the program runs on, in its order: a mesh may use only some of them."""
    sharding = jax.tree.leaves(program.input_shardings)[0]
    mesh = getattr(sharding, "mesh", None)
    return list(sharding.device_set) if mesh is None else list(mesh.devices.flat)
