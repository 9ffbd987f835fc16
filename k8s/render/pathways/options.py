"""The fields of a PathwaysJob that a user sets, checked. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from k8s.render.image import is_tag
from k8s.render.names import check_label
from k8s.render.pathways.component import PROGRAMS, PathwaysComponent
from sax.errors import InvalidRequest
from sax.slices import ACCELERATOR_LABEL, GENERATIONS, TOPOLOGY_LABEL, TpuSlice

# The values of `workers[].type`, and the first half of --instance_type.
INSTANCE_TYPES = {
    "tpu7x-standard-4t": "tpu7x",
    "ct6e-standard-4t": "tpuv6e",
    "ct6e-standard-8t": "tpuv6e1t",
    "ct5p-hightpu-4t": "tpuv5",
    "ct5lp-hightpu-4t": "tpuv5e",
    "ct5lp-hightpu-8t": "tpuv5e1t",
    "ct4p-hightpu-4t": "tpuv4",
}
_ACCELERATORS = {
    machine.name: generation.accelerator
    for generation in GENERATIONS.values()
    for machine in generation.machines
}
DEFAULT, COLOCATED = DEPLOYMENT_MODES = ("default", "colocate_head_with_workers")
NEVER_GIVE_UP = 1_000_000  # restarts, as the JobSet of model servers
_MOST = 2**31 - 1  # the fields are int32
_MOST_SLICES = 1000
_DIRECTORY = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[A-Za-z0-9][\w.=-]*)*", re.ASCII)
_KEY = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?", re.ASCII
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
# Fields whose command-line option is spelled otherwise than they are.
_OPTIONS = {
    "directory": "pathways-dir",
    "version": "pathways-version",
    "components": "component",
    "trusts_network": "trust-network",
    "collects_metrics": "enable-metrics-collection",
    "node_selector": "worker-node-selector",
}


@dataclass(frozen=True, slots=True)
class PathwaysSlice:
    """One of a PathwaysJob's slices, as `workers[0]` describes it."""

    machine: str  # ct5lp-hightpu-4t
    topology: str  # 4x8

    @property
    def chips_per_host(self) -> int:
        return 8 if self.machine.endswith("-8t") else 4

    @property
    def hosts(self) -> int:
        chips = math.prod(int(each) for each in self.topology.split("x"))
        return max(1, chips // self.chips_per_host)

    @property
    def instance_type(self) -> str:
        """Value of the resource manager's --instance_type, e.g. tpuv5e:4x8."""
        return f"{INSTANCE_TYPES[self.machine]}:{self.topology}"

    @property
    def node_selector(self) -> dict[str, str]:
        return {
            ACCELERATOR_LABEL: _ACCELERATORS[self.machine],
            TOPOLOGY_LABEL: self.topology,
        }


def check_machine(there: TpuSlice) -> None:
    """Refuse a slice of machines that no PathwaysJob takes. Raises InvalidRequest."""
    if there.machine.name not in INSTANCE_TYPES:
        raise InvalidRequest(
            f"a PathwaysJob takes no {there.machine.name}, the machine of {there}: choose a slice "
            f"of {', '.join(INSTANCE_TYPES)}",
            param="machine_type",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathwaysOptions:
    """Options of a PathwaysJob beside those of its model server. Raises InvalidRequest."""

    slices: int = 1  # numSlices: islands that one model server drives
    directory: str | None = None  # pathwaysDir, gs://...; None: pathways/ in the cell's bucket
    version: str | None = None  # pathwaysVersion: tag of Google's images; None: latest
    max_restarts: int = NEVER_GIVE_UP  # of everything
    elastic_slices: int = 0  # slices that may be missing while the others serve
    max_slice_restarts: int | None = None  # of each slice's workers; None: 1
    deployment_mode: str = DEFAULT
    components: tuple[PathwaysComponent, ...] = ()
    trusts_network: bool = False  # components of ours serve all who reach the nodes' ports
    collects_metrics: bool = False
    worker_grace_seconds: int | None = None  # None: Kubernetes' 30
    worker_priority_class: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])  # of workers

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_elasticity()
        if self.deployment_mode not in DEPLOYMENT_MODES:
            raise _refused("deployment_mode", f"choose one of {', '.join(DEPLOYMENT_MODES)}", self)
        if self.directory is not None and not _DIRECTORY.fullmatch(self.directory):
            raise _refused(
                "directory",
                "Pathways keeps its artifacts in an existing Google bucket: write gs://BUCKET/FOLDER",
                self,
            )
        if self.worker_priority_class is not None:
            check_label(
                self.worker_priority_class, "--worker-priority-class", "worker_priority_class"
            )
        self._check_version()
        if self.trusts_network and not any(each.is_ours for each in self.components):
            raise _refused("trusts_network", "none of the components is ours: drop it", self)
        self._check_selector()

    def _check_counts(self) -> None:
        ranges = {
            "slices": (1, _MOST_SLICES),
            "max_restarts": (0, _MOST),
            "elastic_slices": (0, _MOST_SLICES),
            "max_slice_restarts": (1, _MOST),
            "worker_grace_seconds": (0, _MOST),
        }
        for name, (least, most) in ranges.items():
            count = getattr(self, name)
            if count is not None and not least <= count <= most:
                raise _refused(name, f"write {least} to {most}", self)

    def _check_elasticity(self) -> None:
        if self.elastic_slices and self.elastic_slices >= self.slices:
            raise _refused(
                "elastic_slices",
                f"one of the slices must stay: write less than --slices {self.slices}",
                self,
            )
        if self.max_slice_restarts is not None and not self.elastic_slices:
            raise _refused(
                "max_slice_restarts",
                "the controller ignores it without --elastic-slices: give both",
                self,
            )

    def _check_version(self) -> None:
        if self.version is None:
            return
        if not is_tag(self.version):
            raise _refused("version", "write the tag of Google's Pathways images", self)
        if {each.kind for each in self.components if each.image} >= set(PROGRAMS):
            raise _refused(
                "version", "no image of Google's is left that it could choose: drop it", self
            )

    def _check_selector(self) -> None:
        for key, value in self.node_selector.items():
            if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)):
                raise _refused("node_selector", "write KEY=VALUE, a node's label", self)
            if key in (ACCELERATOR_LABEL, TOPOLOGY_LABEL):
                raise _refused("node_selector", f"{key} follows from --topology: drop it", self)

    def given(self) -> list[str]:
        """Return the options that differ from their defaults, as the command line spells them."""
        usual = PathwaysOptions()
        names = (each.name for each in fields(self))
        return [option_of(name) for name in names if getattr(self, name) != getattr(usual, name)]

    def uses_our(self, kind: str) -> bool:
        return any(each.kind == kind and each.is_ours for each in self.components)


def option_of(name: str) -> str:
    return f"--{_OPTIONS.get(name, name.replace('_', '-'))}"


def _refused(name: str, remedy: str, options: PathwaysOptions) -> InvalidRequest:
    value = getattr(options, name)
    option = option_of(name)
    return InvalidRequest(
        f"{option} {value!r}: {remedy}", param=option.removeprefix("--").replace("-", "_")
    )
