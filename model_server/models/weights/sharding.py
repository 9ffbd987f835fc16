"""Logical axes to devices: a mesh, sharding rules and overrides of them, and how heads are split.

A dimension that its mesh axis does not divide evenly is replicated: slower, never wrong. A layout
over an abstract mesh gives each device's share without needing the devices. The mesh has Saxml's
three axes: `replica`, `data` (data_mdl2 there) and `model` (mdl).
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from model_server.kernels.sequence_sharding import SequenceSharding
from sax.errors import InvalidRequest, MemoryPlanError

AXES = ("replica", "data", "model")
_RULES_PARAM = "overrides.SHARDING_RULES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Mesh axis for each logical axis; None: replicated."""

    vocab: str | None = "model"
    heads: str | None = "model"
    ffw: str | None = "model"
    experts: str | None = "model"
    embed: str | None = "data"
    tokens: str | None = None  # rows of a step between attention and feed-forwards; no weight axis

    def of(self, logical: str | None) -> str | None:
        return None if logical is None else getattr(self, logical)


LOGICAL = tuple(field.name for field in fields(Rules))
DEFAULT_RULES = Rules()


def parse_rules(given: Any) -> Rules:
    """Apply an override to the default rules. Raises InvalidRequest."""
    if given is None:
        return DEFAULT_RULES
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"SHARDING_RULES is {json.dumps(given)}: give an object mapping logical to mesh axes, "
            'e.g. {"experts": "data"}',
            param=_RULES_PARAM,
        )
    for logical, axis in given.items():
        _check("logical axis", logical, LOGICAL)
        if axis is not None:
            _check(f'mesh axis for "{logical}"', axis, AXES, " or null")
    return replace(DEFAULT_RULES, **given)


def _check(what: str, given: Any, known: Sequence[str], more: str = "") -> None:
    if given in known:
        return
    close = difflib.get_close_matches(str(given), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise InvalidRequest(
        f"SHARDING_RULES has an unknown {what}, {json.dumps(given)}: {hint}use "
        f"{', '.join(known)}{more}",
        param=_RULES_PARAM,
    )


_PARAM = "overrides.ICI_MESH_SHAPE"


@dataclass(frozen=True, slots=True)
class Layout:
    """Sharding of a model: a mesh, concrete or abstract, and the rules."""

    mesh: Mesh | AbstractMesh
    rules: Rules = DEFAULT_RULES

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu; for an abstract mesh, this process's platform."""
        return self.mesh.devices.flat[0].platform if isinstance(self.mesh, Mesh) else _platform()

    def axis(self, logical: str | None) -> str | None:
        """Mesh axis that shards dimensions of this logical axis; None: replicated."""
        axis = self.rules.of(logical)
        return None if axis is None or self.mesh.shape[axis] == 1 else axis

    def shards(self, logical: str | None) -> int:
        axis = self.axis(logical)
        return 1 if axis is None else self.mesh.shape[axis]

    def spec(
        self, shape: Sequence[int], axes: Sequence[str | None], bits: int = 8
    ) -> PartitionSpec:
        """Partition spec of an array with these logical axes; each mesh axis is used at most once.

        `embed`, which every matrix has, gives way to the others. bits: per number; a shard of a row
        must be whole bytes, so that a process can pack what it holds.
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
        return NamedSharding(self.mesh, self.spec(shape, axes, bits))

    def pages(self, heads: str | None) -> NamedSharding:
        """Sharding of pages, [P, K, ...]; heads: logical axis of their KV heads."""
        return NamedSharding(self.mesh, PartitionSpec(None, self.axis(heads)))

    def rows(self, count: int, axes: Sequence[str] = AXES[:2]) -> NamedSharding:
        """Sharding of so many independent inputs.

        They are divided over these axes, those that copy a model's products, if evenly.
        """
        even = count % math.prod(self.mesh.shape[axis] for axis in axes) == 0
        return NamedSharding(self.mesh, PartitionSpec(tuple(axes) if even else None))

    def even(self, counts: Sequence[int], axes: Sequence[str] = AXES[:2]) -> tuple[int, ...]:
        """Return the next larger numbers of inputs that these axes divide evenly, ascending."""
        parts = math.prod(self.mesh.shape[axis] for axis in axes)
        return tuple(sorted({-(-count // parts) * parts for count in counts}))

    def row_split(self) -> SequenceSharding | None:
        axis = self.axis("tokens")
        if axis is None or not isinstance(self.mesh, Mesh):
            return None
        return SequenceSharding(self.mesh, axis, attention=axis != self.axis("heads"))

    def placed(self, among: Sequence[Any] | None = None) -> Layout:
        """The same layout on real devices: those of `among`, or of all hosts.

        Raises InvalidRequest, MemoryPlanError.
        """
        return replace(self, mesh=make_mesh(tuple(self.mesh.shape.values()), among))


def _platform() -> str:
    return jax.default_backend()


def parse_mesh_shape(value: Any) -> tuple[int, ...] | None:
    """Read ICI_MESH_SHAPE. Raises InvalidRequest unless it is a list or null."""
    if value is None or isinstance(value, list):
        return None if value is None else tuple(value)
    raise InvalidRequest(
        f"ICI_MESH_SHAPE is {value!r}: give a list of three sizes, e.g. [1, 1, 4]", param=_PARAM
    )


def layout_of(shape: Sequence[int] = (1, 1, 1), rules: Rules = DEFAULT_RULES) -> Layout:
    """Layout over an abstract mesh of this shape. Raises InvalidRequest."""
    if len(shape) != len(AXES) or any(type(size) is not int or size < 1 for size in shape):
        raise InvalidRequest(
            f"ICI_MESH_SHAPE is {list(shape)}: give three sizes of at least 1 for the axes "
            f"{', '.join(AXES)}",
            param=_PARAM,
        )
    return Layout(AbstractMesh(tuple(shape), AXES), rules)


ONE_DEVICE = layout_of()


def asked_layout(value: Any) -> Layout:
    """Layout by ICI_MESH_SHAPE of images or sounds; null: one device. Raises InvalidRequest."""
    shape = parse_mesh_shape(value)
    return ONE_DEVICE if shape is None else layout_of(shape)


def own_device() -> Layout:
    """Layout for single-device models: this process's first device, whatever other hosts have."""
    return Layout(Mesh(np.asarray(jax.local_devices()[:1]).reshape(1, 1, 1), AXES))


def make_mesh(shape: Sequence[int], among: Sequence[Any] | None = None) -> Mesh:
    """Mesh over the first devices of every host. Raises InvalidRequest, MemoryPlanError."""
    devices = jax.devices() if among is None else among
    wanted, there = layout_of(shape).mesh.size, len(devices)
    if wanted > there:
        raise MemoryPlanError(
            f"the mesh {list(shape)} needs {wanted} devices; this server has {there}: publish on a "
            "larger server or override ICI_MESH_SHAPE"
        )
    return Mesh(np.asarray(first_devices(devices, shape)).reshape(tuple(shape)), AXES)


def first_devices(devices: Sequence[Any], shape: Sequence[int]) -> list[Any]:
    """Take the same number of devices from each host, in order.

    Raises InvalidRequest if they cannot be shared evenly: every host takes part in every step.
    """
    wanted, hosts = math.prod(shape), dict[int, list[Any]]()
    for device in devices:
        hosts.setdefault(device.process_index, []).append(device)
    share, rest = divmod(wanted, len(hosts))
    if rest:
        raise InvalidRequest(
            f"ICI_MESH_SHAPE {list(shape)} has {wanted} devices, which the {len(hosts)} hosts of "
            "this server cannot share evenly: every host takes part in every step",
            param=_PARAM,
        )
    return [device for number in sorted(hosts) for device in hosts[number][:share]]


def spans_hosts(layout: Layout) -> bool:
    assert isinstance(layout.mesh, Mesh), "an abstract mesh has no devices"
    return any(device.process_index != jax.process_index() for device in layout.mesh.devices.flat)


def divided_rows(sharding: jax.sharding.Sharding, rows: int) -> jax.sharding.Sharding:
    """Return the sharding of `rows` independent inputs of a model that lies like this."""
    return Layout(sharding.mesh).rows(rows) if isinstance(sharding, NamedSharding) else sharding


def bytes_per_device(shape: Sequence[int], bits: int, sharding: NamedSharding) -> int:
    return math.prod(sharding.shard_shape(tuple(shape))) * bits // 8


@dataclass(frozen=True, slots=True)
class HeadSplit:
    """Split of attention heads over the devices that share them."""

    kv_heads: int  # computed and cached, copies included
    copies: int  # of each KV head in the checkpoint
    sharded: bool  # False: every device computes all heads

    @property
    def axis(self) -> str | None:
        return "heads" if self.sharded else None


def split_heads(heads: int, kv_heads: int, shards: int) -> HeadSplit:
    """Split evenly, copying KV heads if there are fewer than devices; otherwise replicate."""
    if heads % shards == 0 and kv_heads % shards == 0:
        return HeadSplit(kv_heads, 1, shards > 1)
    if heads % shards == 0 and shards % kv_heads == 0:
        return HeadSplit(shards, shards // kv_heads, True)
    return HeadSplit(kv_heads, 1, False)


@dataclass(frozen=True, slots=True)
class WeightPlacement:
    """Static in a program: a step may be traced for devices this process does not have."""

    platform: str = "cpu"  # cpu, gpu or tpu
    outputs: str | None = None  # mesh axis that shards them
    inputs: str | None = None
    rows: str | None = None  # of a step, between layers
    interpret: bool = False  # run TPU kernels without a TPU, for tests

    @classmethod
    def of(
        cls, layout: Layout, shape: Sequence[int], axes: Sequence[str | None], bits: int
    ) -> WeightPlacement:
        outputs, inputs = layout.spec(shape, axes, bits)[-2:]
        rows = layout.axis("tokens")
        return cls(layout.platform, outputs, inputs, None if rows in (outputs, inputs) else rows)
