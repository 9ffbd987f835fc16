"""Global arrays made by programs that each host runs over its local devices only.

Models load while others serve, and a replica's hosts load in no common order, so a program over all
devices could meet a different one on another host. Instead each host computes the shards of its
devices side by side, as one local array, and then declares them part of the global one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

OWN = "own"  # axis over this host's devices


def beside(sharding: Sharding) -> NamedSharding:
    """Sharding of a local array with one shard per local device, side by side."""
    devices = sorted(sharding.addressable_devices, key=lambda device: device.id)
    return NamedSharding(Mesh(devices, (OWN,)), PartitionSpec(OWN))


def shape_beside(shape: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    """Shape of that array for a global `shape` of at least one dimension."""
    first, *rest = sharding.shard_shape(tuple(shape))
    return (first * len(sharding.addressable_devices), *rest)


def starts(shape: Sequence[int], sharding: Sharding) -> list[list[int]]:
    """Start of each local device's shard in the global array, in the same order."""
    where = sharding.addressable_devices_indices_map(tuple(shape))
    ordered = sorted(where, key=lambda device: device.id)
    return [[part.start or 0 for part in where[device] or ()] for device in ordered]


def whole(parts: jax.Array, shape: Sequence[int], sharding: Sharding) -> jax.Array:
    """Global array from shards that lie side by side in `parts`; copies nothing."""
    held = [shard.data for shard in parts.addressable_shards]
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, held)


def parts_of(array: jax.Array) -> jax.Array:
    """This host's shards of an array, side by side; copies nothing."""
    held = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(
        shape_beside(array.shape, array.sharding), beside(array.sharding), held
    )


def full(shape: Sequence[int], value: float, dtype: Any, sharding: Sharding) -> jax.Array:
    parts = jnp.full(shape_beside(shape, sharding), value, dtype, device=beside(sharding))
    return whole(parts, shape, sharding)


def zeros_from_host(shape: Sequence[int], dtype: Any, sharding: Sharding) -> jax.Array:
    """Zeros copied to each device: without a program, for small arrays that calls may donate."""
    blank = np.zeros(sharding.shard_shape(tuple(shape)), dtype)
    held = [jax.device_put(blank, each, may_alias=False) for each in sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays(tuple(shape), sharding, held)
