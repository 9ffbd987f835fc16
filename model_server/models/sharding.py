"""From logical axes to devices: a mesh with its rules, and how attention divides.

A dimension that its mesh axis does not divide evenly stays whole on every device: slower, never
wrong. A layout over an abstract mesh says what each device would hold of a model that no device
of this server has to hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from model_server.kernels.row_split import RowSplit
from model_server.models.axis_rules import AXES, DEFAULT_RULES, Rules
from sax.errors import InvalidRequest, MemoryPlanError

_PARAM = "overrides.ICI_MESH_SHAPE"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is divided: a mesh, of devices or of sizes alone, and the rules."""

    mesh: Mesh | AbstractMesh
    rules: Rules = DEFAULT_RULES

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu; of sizes alone: that of this process."""
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else _platform()

    def axis(self, logical: str | None) -> str | None:
        """The mesh axis that divides dimensions of this name; None: they stay whole."""
        axis = self.rules.of(logical)
        return None if axis is None or self.mesh.shape[axis] == 1 else axis

    def shards(self, logical: str | None) -> int:
        """Into how many parts dimensions of this name are divided."""
        axis = self.axis(logical)
        return 1 if axis is None else self.mesh.shape[axis]

    def spec(
        self, shape: Sequence[int], axes: Sequence[str | None], bits: int = 8
    ) -> PartitionSpec:
        """Which mesh axis divides each dimension; every mesh axis is used once at most.

        `embed`, which every matrix has, gives way to the others. bits: of a number; a part of a row
        is whole bytes, so that a process can pack what it holds.
        """
        parts: list[str | None] = [None] * len(shape)
        for place in sorted(range(len(shape)), key=lambda place: axes[place] == "embed"):
            unit = 8 // bits if bits < 8 and place == len(shape) - 1 else 1
            axis, count = self.axis(axes[place]), self.shards(axes[place])
            if axis not in (None, *parts) and shape[place] % (count * unit) == 0:
                parts[place] = axis
        return PartitionSpec(*parts)

    def sharding(
        self, shape: Sequence[int], axes: Sequence[str | None], bits: int = 8
    ) -> NamedSharding:
        """The sharding of an array with these logical axes."""
        return NamedSharding(self.mesh, self.spec(shape, axes, bits))

    def pages(self, heads: str | None) -> NamedSharding:
        """The sharding of pages, [P, K, ...]; heads: the logical axis of their KV heads."""
        return NamedSharding(self.mesh, PartitionSpec(None, self.axis(heads)))

    def row_split(self) -> RowSplit | None:
        """How the rows of a step are divided; None: they lie whole on every device."""
        axis = self.axis("tokens")
        if axis is None or not isinstance(self.mesh, Mesh):
            return None
        return RowSplit(self.mesh, axis, attention=axis != self.axis("heads"))

    def placed(self, among: Sequence[Any] | None = None) -> Layout:
        """The same over devices: of `among`, or of all hosts.

        Raises InvalidRequest, MemoryPlanError.
        """
        return replace(self, mesh=make_mesh(tuple(self.mesh.shape.values()), among))


def _platform() -> str:
    return jax.default_backend()


def layout_of(shape: Sequence[int] = (1, 1, 1), rules: Rules = DEFAULT_RULES) -> Layout:
    """A layout of sizes alone. Raises InvalidRequest."""
    if len(shape) != len(AXES) or any(type(size) is not int or size < 1 for size in shape):
        raise InvalidRequest(
            f"ICI_MESH_SHAPE is {list(shape)}: give three sizes of at least 1 for the axes "
            f"{', '.join(AXES)}",
            param=_PARAM,
        )
    return Layout(AbstractMesh(tuple(shape), AXES), rules)


ONE_DEVICE = layout_of()


def own_device() -> Layout:
    """For models on one device: this process's first, whatever the other hosts have."""
    return Layout(Mesh(np.asarray(jax.local_devices()[:1]).reshape(1, 1, 1), AXES))


def make_mesh(shape: Sequence[int], among: Sequence[Any] | None = None) -> Mesh:
    """A mesh over the first devices of every host. Raises InvalidRequest, MemoryPlanError."""
    devices = jax.devices() if among is None else among
    wanted, there = layout_of(shape).mesh.size, len(devices)
    if wanted > there:
        raise MemoryPlanError(
            f"the mesh {list(shape)} needs {wanted} devices; this server has {there}: publish on a "
            "larger server or override ICI_MESH_SHAPE"
        )
    return Mesh(np.asarray(first_devices(devices, shape)).reshape(tuple(shape)), AXES)


def first_devices(devices: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    """As many of each host, so that every host has a part in each step. Raises InvalidRequest."""
    wanted, hosts = math.prod(shape), dict[int, list[Any]]()
    for device in devices:
        hosts.setdefault(device.process_index, []).append(device)
    share, rest = divmod(wanted, len(hosts))
    if rest:
        raise InvalidRequest(
            f"ICI_MESH_SHAPE {list(shape)} has {wanted} devices, which the {len(hosts)} hosts of "
            "this server cannot share evenly: every host takes part in each step",
            param=_PARAM,
        )
    return [device for number in sorted(hosts) for device in hosts[number][:share]]


def spans_hosts(layout: Layout) -> bool:
    """Are some of its devices on other hosts?"""
    assert isinstance(layout.mesh, Mesh), "a layout of sizes is nowhere"
    return any(device.process_index != jax.process_index() for device in layout.mesh.devices.flat)


def bytes_per_device(shape: Sequence[int], bits: int, sharding: NamedSharding) -> int:
    """What one device holds of an array of numbers of so many bits."""
    return math.prod(sharding.shard_shape(tuple(shape))) * bits // 8


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """How the heads of an attention lie on the devices that share them."""

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
