"""Builds a sharded array from regions, on the devices of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from model_server.aligned import aligned
from model_server.checkpoints.region import Region, explicit
from model_server.models.sharding import Layout
from model_server.models.weight import Leaf


def place(leaf: Leaf, layout: Layout, read: Callable[[Region], np.ndarray]) -> jax.Array:
    """Build an array, reading each region once however many devices hold it."""
    sharding = layout.sharding(leaf.shape, leaf.axes, leaf.bits)
    holders: dict[tuple[tuple[int, int], ...], list[Any]] = {}  # bounds -> devices
    for device, index in sharding.addressable_devices_indices_map(leaf.shape).items():
        bounds = tuple((part.start, part.stop) for part in explicit(index or (), leaf.shape))
        holders.setdefault(bounds, []).append(device)
    shards: list[jax.Array] = []
    for bounds, devices in holders.items():
        region = tuple(slice(start, stop) for start, stop in bounds)
        numbers = aligned(read(region), leaf.dtype)
        shards += [jax.device_put(numbers, device) for device in devices]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)
