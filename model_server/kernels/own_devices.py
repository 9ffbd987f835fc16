"""Arrays over many hosts, made by programs that each host runs over its own devices alone.

Models load while others serve, and the hosts of a replica load in no common order: a program over
all of them would meet another one on the other side. So what a host's devices hold of an array is
computed side by side, as one array of this host, and then called a part of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

OWN = "own"  # the axis over this host's devices


def beside(sharding: Sharding) -> NamedSharding:
    """Of an array with the parts of this host's devices one after the other."""
    devices = sorted(sharding.addressable_devices, key=lambda device: device.id)
    return NamedSharding(Mesh(devices, (OWN,)), PartitionSpec(OWN))


def shape_beside(shape: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    """The shape of that array, for a whole of `shape`, which has a dimension at least."""
    first, *rest = sharding.shard_shape(tuple(shape))
    return (first * len(sharding.addressable_devices), *rest)


def starts(shape: Sequence[int], sharding: Sharding) -> list[list[int]]:
    """Where the part of each of this host's devices begins in the whole, in the same order."""
    where = sharding.addressable_devices_indices_map(tuple(shape))
    ordered = sorted(where, key=lambda device: device.id)
    return [[part.start or 0 for part in where[device] or ()] for device in ordered]


def whole(parts: jax.Array, shape: Sequence[int], sharding: Sharding) -> jax.Array:
    """The array whose parts lie side by side in `parts`; nothing is copied."""
    held = [shard.data for shard in parts.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, held)


def parts_of(array: jax.Array) -> jax.Array:
    """What this host holds of an array, side by side; nothing is copied."""
    held = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(
        shape_beside(array.shape, array.sharding), beside(array.sharding), held
    )


def full(shape: Sequence[int], value: float, dtype: Any, sharding: Sharding) -> jax.Array:
    """An array of one number."""
    parts = jnp.full(shape_beside(shape, sharding), value, dtype, device=beside(sharding))
    return whole(parts, shape, sharding)
