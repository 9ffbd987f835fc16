"""TPU machine types of Google Kubernetes Engine, and the slices they make. Pure.

Sources, at https://cloud.google.com/: topologies and node labels per machine type:
/kubernetes-engine/docs/concepts/plan-tpus. vCPUs and memory: v5p, v6e and v7x from /tpu/docs/tpu7x
and /compute/docs/tpus/tpu-machines, v5e from /tpu/docs/v5e, v4 from /tpu/docs/v4. Memory that a
node reserves for itself: /kubernetes-engine/docs/concepts/plan-node-sizes.

A test compares the hosts per slice with what the compiler says.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sax.errors import InvalidRequest
from sax.format import quoted
from sax.names import nearest

ACCELERATOR_LABEL = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
NODE_POOL_LABEL = "cloud.google.com/gke-nodepool"
TPU = "google.com/tpu"  # the resource, and the taint on TPU nodes

_GIB = 2**30
_SLICE = re.compile(r"([a-z][a-z0-9_-]*?)[:=_](\d{1,3}(?:x\d{1,3}){1,2})")
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
_LARGE = ("8x8x12", "8x8x16", "8x16x16")
_PER_HOST = 4  # chips per machine in every slice of several hosts


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    chips: int
    vcpus: int
    memory: int  # bytes

    @property
    def allocatable(self) -> int:
        """Bytes a node has for pods; the kubelet and the system take the rest."""
        steps = ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (math.inf, 0.02))
        left, kept = self.memory / _GIB, 0.1
        for width, share in steps:
            kept += min(left, width) * share
            left -= min(left, width)
        return self.memory - math.ceil(kept * _GIB)

    def makes(self, chips: int) -> bool:
        return chips == self.chips or (
            self.chips == _PER_HOST and chips > _PER_HOST and chips % _PER_HOST == 0
        )


@dataclass(frozen=True, slots=True)
class TpuGeneration:
    chip: str  # v5e of v5e:4x8
    accelerator: str  # node label
    sizes: tuple[str, ...]  # available topologies, smallest first
    machines: tuple[Machine, ...]
    also: tuple[str, ...] = ()  # other names in use
    locks_memory: bool = False  # the driver maps more than Linux lets a process lock by default


@dataclass(frozen=True, slots=True)
class TpuSlice:
    """A TPU slice and the machine type it consists of."""

    generation: TpuGeneration
    size: str  # 4x8
    machine: Machine

    def __str__(self) -> str:
        return f"{self.generation.chip}:{self.size}"

    @property
    def chips(self) -> int:
        return _chips(self.size)

    @property
    def chips_per_host(self) -> int:
        return self.machine.chips

    @property
    def hosts(self) -> int:
        return self.chips // self.machine.chips

    @property
    def platform_chip(self) -> str:
        """Value of the model server's flag --platform_chip."""
        return f"tpu{self.generation.chip}"

    @property
    def node_selector(self) -> dict[str, str]:
        return {ACCELERATOR_LABEL: self.generation.accelerator, TOPOLOGY_LABEL: self.size}


def _machines(name: str, *sizes: tuple[int, int, int]) -> tuple[Machine, ...]:
    return tuple(
        Machine(name.format(chips), chips, vcpus, gib * _GIB) for chips, vcpus, gib in sizes
    )


GENERATIONS = {
    each.chip: each
    for each in (
        TpuGeneration(
            "v4",
            "tpu-v4-podslice",
            (*_CUBES, *_LARGE),
            _machines("ct4p-hightpu-{}t", (4, 240, 407)),
        ),
        TpuGeneration(
            "v5e",
            "tpu-v5-lite-podslice",
            _FLAT,
            _machines("ct5lp-hightpu-{}t", (1, 24, 48), (4, 112, 192), (8, 224, 384)),
            ("v5litepod", "v5lite", "tpu-v5-lite-device"),
        ),
        TpuGeneration(
            "v5p",
            "tpu-v5p-slice",
            (*_CUBES, *_LARGE, "16x16x16", "16x16x24"),
            _machines("ct5p-hightpu-{}t", (4, 208, 448)),
        ),
        TpuGeneration(
            "v6e",
            "tpu-v6e-slice",
            _FLAT,
            _machines("ct6e-standard-{}t", (1, 44, 176), (4, 180, 720), (8, 180, 1440)),
            ("trillium",),
            locks_memory=True,
        ),
        TpuGeneration(
            "v7x",
            "tpu7x",
            (*_CUBES, *_LARGE),
            _machines("tpu7x-standard-{}t", (4, 224, 960)),
            ("v7", "ironwood", "tpu-v7x-slice"),
            locks_memory=True,
        ),
    )
}
_KNOWN = {
    word: each
    for each in GENERATIONS.values()
    for word in (each.chip, f"tpu{each.chip}", each.accelerator, *each.also)
}


def slice_of(topology: str, machine_type: str | None = None) -> TpuSlice:
    """Parse a slice such as v5e:4x8; `machine_type` overrides the default machine type.

    Raises InvalidRequest with the nearest valid names.
    """
    found = _SLICE.fullmatch(topology.strip().lower())
    if found is None:
        raise InvalidRequest(
            f"topology {quoted(topology)} is not a slice: write CHIP:SIZE, e.g. v5e:4x8 or "
            f"v5p:2x2x4; Kubernetes Engine has {', '.join(GENERATIONS)}",
            param="topology",
        )
    generation = _generation(found[1])
    size = found[2]
    if size not in generation.sizes:
        raise InvalidRequest(
            f"there is no slice {generation.chip}:{size} on Kubernetes Engine; nearest: "
            f"{', '.join(_near(generation, size))}",
            param="topology",
        )
    return TpuSlice(generation, size, _machine(generation, size, machine_type))


def machine_types() -> list[str]:
    return [machine.name for each in GENERATIONS.values() for machine in each.machines]


def _generation(word: str) -> TpuGeneration:
    if found := _KNOWN.get(word):
        return found
    raise InvalidRequest(
        f"Kubernetes Engine has no TPU {quoted(word)}; nearest: "
        f"{', '.join(nearest(word, _KNOWN)) or 'v5e'}; available: {', '.join(GENERATIONS)}",
        param="topology",
    )


def _machine(generation: TpuGeneration, size: str, wanted: str | None) -> Machine:
    chips = _chips(size)
    fitting = sorted(
        (machine for machine in generation.machines if machine.makes(chips)),
        # Of two that fit, prefer the one that also makes larger slices: the compiler assumes it.
        key=lambda machine: machine.chips != _PER_HOST,
    )
    if wanted is None:
        return fitting[0]
    if found := next((machine for machine in fitting if machine.name == wanted), None):
        return found
    raise InvalidRequest(_unfit(generation, size, wanted, fitting), param="machine_type")


def _unfit(generation: TpuGeneration, size: str, wanted: str, fitting: list[Machine]) -> str:
    right = " or ".join(
        f"{machine.name} ({_counted(_chips(size) // machine.chips)})" for machine in fitting
    )
    remedy = f"for {generation.chip}:{size} give --machine-type {right}"
    theirs = next((each for each in generation.machines if each.name == wanted), None)
    if theirs is None:
        if wanted in machine_types():
            return f"{wanted} has no {generation.chip} chips: {remedy}"
        near = ", ".join(nearest(wanted, machine_types())) or ", ".join(machine_types())
        return f"there is no TPU machine type {quoted(wanted)}; nearest: {near}; {remedy}"
    sizes = [each for each in generation.sizes if theirs.makes(_chips(each))]
    made = f"makes {', '.join(sizes)} only" if len(sizes) < 5 else f"makes {sizes[0]} and larger"
    return (
        f"{wanted} has {theirs.chips} chip{'s' * (theirs.chips > 1)} and {made}, "
        f"not {size} with its {_chips(size)} chips: {remedy}"
    )


def _counted(hosts: int) -> str:
    return f"{hosts} of them" if hosts > 1 else "one of them"


def _near(generation: TpuGeneration, size: str) -> list[str]:
    def distance(each: str) -> float:
        return abs(math.log(_chips(each) / max(_chips(size), 1)))

    return [f"{generation.chip}:{each}" for each in sorted(generation.sizes, key=distance)[:3]]


def _chips(size: str) -> int:
    return math.prod(map(int, size.split("x")))
