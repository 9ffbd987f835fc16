"""A compiled program as bytes, and back onto the devices of this process.

The bytes are a pickle with machine code in it: reading them runs what they say. Who reads them must
know where they are from.
"""

from __future__ import annotations

import pickle
from typing import Any

import jax
from jax.experimental import serialize_executable


def to_bytes(program: Any) -> bytes:
    """Raises what the backend raises where it cannot."""
    devices = [device.id for device in _devices(program)]
    return pickle.dumps((devices, serialize_executable.serialize(program)))


def from_bytes(body: bytes) -> Any:
    """The program, on the devices of the same ids. Raises anything where that does not work."""
    ids, serialized = pickle.loads(body)
    by_id = {device.id: device for device in jax.devices()}
    devices = [by_id[each] for each in ids]
    return serialize_executable.deserialize_and_load(*serialized, execution_devices=devices)


def _devices(program: Any) -> list[Any]:
    """Those it runs on, in its order: a mesh may take some of all there are."""
    sharding = jax.tree.leaves(program.input_shardings)[0]
    mesh = getattr(sharding, "mesh", None)
    return list(sharding.device_set) if mesh is None else list(mesh.devices.flat)
