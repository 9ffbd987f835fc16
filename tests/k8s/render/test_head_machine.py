"""The machine that is named for the head of Pathways has what its pod requests; half has not."""

from __future__ import annotations

from typing import Any

import pytest

from k8s.render.fields import parse_quantity
from k8s.render.gcloud import HEAD_MACHINE, HEAD_NEEDS, head_pool_command
from k8s.render.order import PATHWAYS_KINDS
from sax.slices import GENERATIONS, Machine
from tests.k8s.manifests import K8S, kubectl
from tests.k8s.manifests import rendered as overlay
from tests.k8s.render.orders import rendered

_GIB = 2**30
_AGENTS = 1.0  # CPUs, and at the same time 2 GiB, of what runs on every node


def allocatable_cpus(machine: Machine) -> float:
    """By Kubernetes Engine's documentation: parts of the first CPU, the second, the next two..."""
    kept = sum(0.06 * (cpu == 0) or 0.01 * (cpu == 1) or 0.005 * (cpu < 4) or 0.0025
               for cpu in range(machine.vcpus))  # fmt: skip
    return machine.vcpus - kept


def fits(cpus: float, memory: float, machine: Machine) -> bool:
    room = machine.allocatable - 2 * _AGENTS * _GIB
    return cpus <= allocatable_cpus(machine) - _AGENTS and memory <= room


def requests(pod: dict[str, Any], resource: str) -> float:
    """Of all containers that run at once; a limit without a request is one."""
    at_once = [each for each in pod.get("initContainers", ()) if each.get("restartPolicy")]
    asked = 0.0
    for container in (*pod["containers"], *at_once):
        resources = container.get("resources", {})
        told = resources.get("limits", {}) | resources.get("requests", {})
        asked += parse_quantity(str(told.get(resource, "0"))) or 0.0
    return asked


def head_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    jobset = next(each for each in objects if each["kind"] == "JobSet")
    (job,) = [e for e in jobset["spec"]["replicatedJobs"] if e["name"] == "pathways-head"]
    return job["template"]["spec"]["template"]["spec"]


def heads() -> dict[str, dict[str, Any]]:
    made = {"render": head_of(list(rendered(kind=PATHWAYS_KINDS[1], name="sax").objects))}
    if kubectl():
        made["overlay"] = head_of(overlay("overlays/pathways/jobset"))
    return made


@pytest.mark.parametrize("name", ["render", "overlay"])
def test_the_named_machine_has_what_the_head_requests(name: str) -> None:
    if name not in (there := heads()):
        pytest.skip("kubectl is not there")
    cpus, memory = requests(there[name], "cpu"), requests(there[name], "memory")
    assert f"{cpus:.0f} CPUs and {memory / 1e9:.0f} GB" == HEAD_NEEDS
    assert fits(cpus, memory, HEAD_MACHINE)
    half = Machine("n2-standard-32", 0, HEAD_MACHINE.vcpus // 2, HEAD_MACHINE.memory // 2)
    assert not fits(cpus, memory, half)
    tpu_host = next(each for each in GENERATIONS["v5e"].machines if each.chips == 4)
    assert fits(cpus, memory, tpu_host)  # beside workers: overlays/pathways/colocated


def test_every_place_names_this_machine_and_these_needs() -> None:
    told = (K8S / "overlays/pathways/kustomization.yaml").read_text().replace("\n# ", " ")
    heading = rendered(kind=PATHWAYS_KINDS[0], name="sax").heading
    assert f"--machine-type={HEAD_MACHINE.name} " in head_pool_command("head", 1)
    for text in (told, heading, (K8S / "pathways_flags.py").read_text()):
        assert HEAD_MACHINE.name in text
    for text in (told, heading):
        assert HEAD_NEEDS in text
    colocated = (K8S / "overlays/pathways/colocated/kustomization.yaml").read_text()
    assert HEAD_NEEDS in colocated.replace("\n# ", " ")
