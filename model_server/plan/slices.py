"""TPU slices such as v5e:4x8: their names, and their devices as libtpu's compiler describes them.

Needs no TPU.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jax.experimental import topologies

from model_server.config import ModelServerConfig
from model_server.loading.memory_plan import FreeMemory
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, layout_of
from model_server.plan.chips import ALIASES, CHIPS, Chip
from sax.errors import InvalidRequest, Unavailable
from sax.names import nearest
from sax.slices import GENERATIONS

_PARAM = "topology"
_NAME = re.compile(r"([a-z][a-z0-9_-]*?)[:=_](\d+(?:x\d+)*)")
_COUNTED = re.compile(r"([a-z][a-z0-9_-]*?)-(\d+)")  # v5litepod-32: a number of chips
_MOST_CHIPS = 2**14  # far above any slice; a typo would keep the compiler busy for ever

# Slices of Google Cloud, smallest first: https://cloud.google.com/tpu/docs/ and each chip's page.
LENT = {
    "v2": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16"),
    "v3": ("2x2", "4x4", "4x8", "8x8", "8x16", "16x16", "16x32", "32x32"),
    **{each.chip: each.sizes for each in GENERATIONS.values()},
}

# By default libtpu queries the metadata server of a TPU machine and locks out other processes;
# compiling alone needs neither.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # any value avoids a complaint on stderr
}
# libtpu sets these itself, behind os.environ, to error messages where it found nothing. A server
# that this process starts would take them for those of a slice.
_WRITTEN = (
    "TPU_WORKER_ID",
    "CLOUD_TPU_TASK_ID",
    "CLOUD_TPU_ACCELERATOR_TYPE",
    "CLOUD_TPU_WORKER_HOSTNAMES",
    "TPU_PREMAPPED_BUFFER_SIZE",
)
# TPU machines join the two cores of these chips into one device; the compiler needs the option.
_JOINED_CORES = {"v4": {"chip_config_name": "megacore"}}


@dataclass(frozen=True, slots=True)
class SliceName:
    """A chip and the number of chips in each direction."""

    chip: Chip
    size: str  # 4x8

    def __str__(self) -> str:
        return f"{self.chip.name}:{self.size}"

    @property
    def chips(self) -> int:
        return chips_of(self.size)

    @property
    def is_lent(self) -> bool:
        """True if Google Cloud offers the slice; the compiler accepts others too."""
        return self.size in LENT[self.chip.name]

    @property
    def for_compiler(self) -> str:
        return f"{self.chip.compiler_name}:{self.size}"


@dataclass(frozen=True, slots=True)
class Topology:
    """A slice: its devices, to compile for, and its hosts."""

    name: str  # v5e:4x8
    chip: Chip
    devices: tuple[Any, ...]
    hosts: int
    chips: int
    is_lent: bool  # offered by Google Cloud

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts

    def memory(self, config: ModelServerConfig) -> FreeMemory:
        """Return the memory that one device has for models."""
        usable = self.chip.usable
        return FreeMemory(min(usable, config.memory_limit_bytes or usable), in_use=0)

    def layout(self, recipe: Recipe) -> Layout:
        """Lay a model out over the slice. Raises InvalidRequest for a mesh that does not fit."""
        there = len(self.devices)
        layout = layout_of(recipe.mesh_shape or (1, 1, there), recipe.rules)
        if layout.mesh.size > there:
            shape = list(layout.mesh.shape.values())
            raise InvalidRequest(
                f"the mesh {shape} needs {layout.mesh.size} devices and {self.name} has {there}: "
                f"override ICI_MESH_SHAPE=[1,1,{there}], or name a larger slice",
                param="overrides.ICI_MESH_SHAPE",
            )
        return layout.placed(self.devices)


def topology_of(text: str) -> Topology:
    """Return the slice of this name. Raises InvalidRequest; Unavailable without libtpu."""
    name = parse_slice(text)
    devices = _described(name)
    return Topology(
        name=str(name),
        chip=name.chip,
        devices=tuple(devices),
        hosts=len({device.process_index for device in devices}),
        chips=len({tuple(device.coords) for device in devices}),
        is_lent=name.is_lent,
    )


def parse_slice(text: str) -> SliceName:
    """Parse v5e:4x8 and its like. Raises InvalidRequest with the nearest names."""
    found = _NAME.fullmatch(text.strip().lower())
    if found is None:
        raise _unreadable(text)
    name = SliceName(parse_chip(found[1], found[2]), found[2])
    if not 0 < name.chips <= _MOST_CHIPS:
        raise InvalidRequest(
            f"topology {text} has {name.chips} chips; nearest: {_listed(nearby(name))}",
            param=_PARAM,
        )
    return name


def parse_chip(text: str, size: str = "") -> Chip:
    """Parse v5e or an alias. Raises InvalidRequest with the nearest names."""
    word = text.strip().lower()
    if found := CHIPS.get(ALIASES.get(word, word)):
        return found
    close = nearest(word, {**CHIPS, **ALIASES})
    if size:
        close = [f"{name}:{_fitting(name, size)}" for name in close]
    raise InvalidRequest(
        f"no TPU is called {text!r}; nearest: {_listed(close or list(CHIPS))}; there are "
        f"{', '.join(CHIPS)}",
        param=_PARAM if size else "chip",
    )


def nearby(name: SliceName, limit: int = 3) -> list[str]:
    """Return available slices of the same chip, nearest in size first."""

    def distance(size: str) -> float:
        return abs(math.log(chips_of(size) / max(name.chips, 1)))

    sizes = sorted(LENT[name.chip.name], key=distance)
    return [f"{name.chip.name}:{size}" for size in sizes[:limit]]


def chips_of(size: str) -> int:
    """Return the number of chips: 32 for 4x8."""
    return math.prod(map(int, size.split("x")))


def _fitting(chip: str, size: str) -> str:
    """Return the size if the chip comes in it, else its smallest."""
    sizes = LENT[ALIASES.get(chip, chip)]
    return size if size in sizes else sizes[0]


def _unreadable(text: str) -> InvalidRequest:
    word = text.strip().lower()
    if counted := _COUNTED.fullmatch(word):
        chip = parse_chip(counted[1], counted[2])
        name = SliceName(chip, str(int(counted[2])))
        hint = f"give their shape: {_listed(nearby(name))}"
    elif chip := CHIPS.get(ALIASES.get(word.rstrip(":"), word.rstrip(":"))):
        hint = f"add a size: {', '.join(f'{chip.name}:{size}' for size in LENT[chip.name])}"
    else:
        hint = "write CHIP:SIZE, as v5e:4x8, v5p:2x2x4, or auto"
        if ":" in word:
            parse_chip(
                word.partition(":")[0], "1x1"
            )  # raises the clearer error for an unknown chip
    return InvalidRequest(f"topology {text!r} is not the name of a slice: {hint}", param=_PARAM)


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _described(name: SliceName) -> list[Any]:
    if importlib.util.find_spec("libtpu") is None:
        raise Unavailable(
            "the TPU compiler is not installed here: pip install 'libtpu>=0.0.42,<0.1' "
            "(Linux x86-64; it needs no TPU)"
        )
    options = _JOINED_CORES.get(name.chip.name, {})
    try:
        with _as_for_a_compiler():
            described = topologies.get_topology_desc(
                platform="tpu", topology_name=name.for_compiler, **options
            )
    except RuntimeError as exc:
        raise _refused(name, exc) from exc
    devices = list(described.devices)
    _check_even(name, devices)
    return devices


@contextmanager
def _as_for_a_compiler() -> Iterator[None]:
    """Set the environment that libtpu needs, and restore it afterwards."""
    given = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in (*given, *_WRITTEN):
            if name in given or name not in os.environ:
                os.environ.pop(name, None)
                os.unsetenv(name)


def _check_even(name: SliceName, devices: list[Any]) -> None:
    shares = Counter(device.process_index for device in devices)
    if len(set(shares.values())) > 1:
        raise InvalidRequest(
            f"topology {name} has hosts with different numbers of devices; nearest: "
            f"{', '.join(nearby(name))}",
            param="topology",
        )


def _refused(name: SliceName, exc: RuntimeError) -> InvalidRequest:
    """Translate the compiler's error; its own text is kept unless it is only about the name."""
    said = str(exc).partition("\n")[0].partition(": ")[2] or str(exc)
    if "not divisible" in said:
        said = f"its hosts have 2x2 chips each, which {name.size} does not divide into"
    others = [each for each in nearby(name, 4) if each != str(name)][:3]
    return InvalidRequest(
        f"there is no slice {name}: {said}; nearest: {', '.join(others)}",
        param="topology",
    )
