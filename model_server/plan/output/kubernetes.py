"""Kubernetes values that give one replica its slice on Google Kubernetes Engine.

`sax.slices` knows the machine types of each slice.
"""

from __future__ import annotations

from model_server.plan.model_plan import Slice
from sax.errors import InvalidRequest
from sax.slices import GENERATIONS, Machine, slice_of


def kubernetes_values(where: Slice, model: str) -> str:
    """Return YAML with node selector, resources and counts.

    Raises InvalidRequest for chips that GKE lacks.
    """
    if where.chip not in GENERATIONS:
        raise InvalidRequest(
            f"Kubernetes Engine has no {where.chip}: plan for one of {', '.join(GENERATIONS)}",
            param="emit",
        )
    there = slice_of(where.topology, _machine_of(where).name)
    return "\n".join(
        [
            f"# One replica of {_on_one_line(model)} on {where.topology}, by sax plan.",
            f"hosts: {there.hosts}",
            f"chipsPerHost: {there.chips_per_host}",
            f"machineType: {there.machine.name}",
            f"platformChip: {there.platform_chip}",
            f"platformTopology: {there.size}",
            "nodeSelector:",
            *(f"  {label}: {value}" for label, value in there.node_selector.items()),
            "resources:",
            "  limits:",
            f"    google.com/tpu: {there.chips_per_host}",
            "  requests:",
            f"    google.com/tpu: {there.chips_per_host}",
            "",
        ]
    )


def _machine_of(where: Slice) -> Machine:
    """Return the machine type with as many chips as the plan's hosts have."""
    machines = GENERATIONS[where.chip].machines
    found = [machine for machine in machines if machine.chips == where.chips_per_host]
    if not found:
        raise InvalidRequest(
            f"Kubernetes Engine has no machine with {where.chips_per_host} {where.chip} chips: "
            f"there are {', '.join(machine.name for machine in machines)}",
            param="emit",
        )
    return found[0]


def _on_one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
