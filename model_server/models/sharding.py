"""From logical axes to devices: the mesh, the rules, and how attention divides.

A mesh has Saxml's three axes: `replica`, `data` (data_mdl2 there) and `model` (mdl). A dimension
that its mesh axis does not divide evenly stays whole on every device: slower, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sax.errors import InvalidRequest

AXES = ("replica", "data", "model")
# Logical axis of a weight -> mesh axis. Axes not listed are never divided.
RULES = {
    "vocab": "model",
    "heads": "model",
    "ffw": "model",
    "experts": "model",
    "embed": "data",
}


def make_mesh(shape: Sequence[int] = (1, 1, 1), among: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first devices of `among`, by default all there are. Raises InvalidRequest."""
    param = "overrides.ICI_MESH_SHAPE"
    if len(shape) != len(AXES) or any(type(size) is not int or size < 1 for size in shape):
        raise InvalidRequest(
            f"ICI_MESH_SHAPE is {list(shape)}: give three sizes of at least 1 for the axes "
            f"{', '.join(AXES)}",
            param=param,
        )
    wanted, devices = math.prod(shape), among or jax.devices()
    if wanted > len(devices):
        raise InvalidRequest(
            f"the mesh {list(shape)} needs {wanted} devices and this server has {len(devices)}: "
            "publish on a larger server or override ICI_MESH_SHAPE",
            param=param,
        )
    return Mesh(np.asarray(devices[:wanted]).reshape(shape), AXES)


def spec_of(shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh) -> PartitionSpec:
    """Which mesh axis divides each dimension; every mesh axis is used once at most."""
    used: set[str] = set()
    parts: list[str | None] = []
    for size, logical in zip(shape, axes, strict=True):
        axis = RULES.get(logical) if logical else None
        if axis is None or axis in used or mesh.shape[axis] == 1 or size % mesh.shape[axis]:
            parts.append(None)
        else:
            used.add(axis)
            parts.append(axis)
    return PartitionSpec(*parts)


def sharding_of(shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh) -> NamedSharding:
    """The sharding of a weight with these logical axes."""
    return NamedSharding(mesh, spec_of(shape, axes, mesh))


def bytes_per_device(shape: Sequence[int], bits: int, sharding: NamedSharding) -> int:
    """What one device holds of an array of numbers of so many bits."""
    return math.prod(sharding.shard_shape(tuple(shape))) * bits // 8


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """How the heads of an attention lie on the devices of the model axis."""

    kv_heads: int  # that are computed and cached, copies included
    copies: int  # of every KV head of the checkpoint
    sharded: bool  # False: every device computes all heads

    @property
    def axis(self) -> str | None:
        """The logical axis of dimensions that count heads."""
        return "heads" if self.sharded else None


def split_heads(heads: int, kv_heads: int, shards: int) -> HeadSplit:
    """Divide evenly, KV heads copied where there are fewer than devices; else do not divide."""
    if heads % shards == 0 and kv_heads % shards == 0:
        return HeadSplit(kv_heads, 1, shards > 1)
    if heads % shards == 0 and shards % kv_heads == 0:
        return HeadSplit(shards, shards // kv_heads, True)
    return HeadSplit(kv_heads, 1, False)
