"""TPU machine types that a PathwaysJob takes, and what Pathways calls them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
