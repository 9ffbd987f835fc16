"""Devices of this server, and the memory that models may fill on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from model_server.config import ModelServerConfig
from model_server.islands import island_devices, told_limit
from model_server.loading.memory_plan import Devices, FreeMemory
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, layout_of


def server_devices(config: ModelServerConfig) -> Devices:
    """Return the devices of all hosts of this server."""
    local = jax.local_devices()
    if told_limit(local[0]) is not None:
        return Devices(len(local), sum(device_limit([each], config) for each in local))
    if local[0].platform == "cpu":
        return Devices(jax.device_count(), config.memory_limit * jax.process_count())
    here = sum(_accelerator_limit(device, config) for device in local)
    return Devices(jax.device_count(), here * jax.process_count())


def layout_for(recipe: Recipe) -> Layout:
    """Return the recipe's layout; by default all devices of an island share the work.

    Sizes only, on an abstract mesh: it may want more devices than there are. Raises InvalidRequest.
    """
    return layout_of(recipe.mesh_shape or (1, 1, len(island_devices())), recipe.rules)


def free_memory(
    layout: Layout, config: ModelServerConfig, holders: Mapping[str, int]
) -> FreeMemory:
    """Return what is left on each of this process's devices in the layout.

    holders: the models in memory and the bytes that each has planned on a device.
    """
    assert isinstance(layout.mesh, Mesh), "an abstract mesh has no devices"
    devices = layout.mesh.devices.flat
    own = [each for each in devices if each.process_index == jax.process_index()]
    return FreeMemory(device_limit(own, config), sum(holders.values()), holders)


def device_limit(devices: Sequence[Any], config: ModelServerConfig) -> int:
    """Bytes that one of these devices may hold; a machine's CPU devices share its memory."""
    device = devices[0]
    if told := told_limit(device):
        return config.memory_limit_bytes or told
    if device.platform == "cpu":
        return config.memory_limit // len(devices)
    return _accelerator_limit(device, config)


def _accelerator_limit(device: Any, config: ModelServerConfig) -> int:
    if config.memory_limit_bytes:
        return config.memory_limit_bytes
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit") or config.memory_limit


def room_now(layout: Layout) -> int | None:
    """Bytes that are free on each of this process's devices in a layout; None: not known."""
    assert isinstance(layout.mesh, Mesh), "an abstract mesh has no devices"
    here = [d for d in layout.mesh.devices.flat if d.process_index == jax.process_index()]
    if here[0].platform == "cpu":
        free = available_memory()
        return None if free is None else free // len(here)
    told = [each.memory_stats() for each in here]
    return min((s["bytes_limit"] - s["bytes_in_use"] for s in told if s), default=None)


def available_memory() -> int | None:
    """Bytes of this machine's memory that a process may take; None: not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(words[1]) << 10 for words in found), None)
