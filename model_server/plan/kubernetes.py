"""What a cluster must be told to give one replica its slice: Google Kubernetes Engine's words.

Sources: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (machine types, labels).
"""

from __future__ import annotations

from model_server.plan.chips import CHIPS
from model_server.plan.report import Slice
from sax.errors import InvalidRequest

_MACHINES = {
    "v4": "ct4p-hightpu-{}t",
    "v5e": "ct5lp-hightpu-{}t",
    "v5p": "ct5p-hightpu-{}t",
    "v6e": "ct6e-standard-{}t",
    "v7x": "tpu7x-standard-{}t",
}


def kubernetes_values(where: Slice, model: str) -> str:
    """YAML: node selector, resources and counts. Raises InvalidRequest for chips GKE lacks."""
    accelerator = CHIPS[where.chip].accelerator
    if accelerator is None:
        raise InvalidRequest(
            f"Kubernetes Engine has no {where.chip}: plan for one of {', '.join(_MACHINES)}",
            param="emit",
        )
    size = where.topology.partition(":")[2]
    return "\n".join(
        [
            f"# One replica of {_on_one_line(model)} on {where.topology}, by sax plan.",
            f"hosts: {where.hosts}",
            f"chipsPerHost: {where.chips_per_host}",
            f"machineType: {_MACHINES[where.chip].format(where.chips_per_host)}",
            f"platformChip: tpu{where.chip}",
            f"platformTopology: {size}",
            "nodeSelector:",
            f"  cloud.google.com/gke-tpu-accelerator: {accelerator}",
            f"  cloud.google.com/gke-tpu-topology: {size}",
            "resources:",
            "  limits:",
            f"    google.com/tpu: {where.chips_per_host}",
            "  requests:",
            f"    google.com/tpu: {where.chips_per_host}",
            "",
        ]
    )


def _on_one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
