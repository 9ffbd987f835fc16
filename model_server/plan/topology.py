"""TPU slices that are not present, as described by libtpu's compiler. Needs no TPU."""

from __future__ import annotations

import importlib.util
import os
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
from model_server.plan.slices import Chip, SliceName, nearby, parse_slice
from sax.errors import InvalidRequest, Unavailable

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
