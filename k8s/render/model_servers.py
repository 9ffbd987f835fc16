"""Renders the JobSets, the LeaderWorkerSet or the PathwaysJobs of model servers for an order.

All kinds use the pod of the packaged JobSet; they differ in which controller creates the pods and
tells them their ordinals.
"""

from __future__ import annotations

import copy
from typing import Any

from k8s.render.arguments import arguments
from k8s.render.heads import pathways_servers
from k8s.render.host_memory import memory_request, quantity
from k8s.render.order import PATHWAYS_KINDS, SPOT, Order, SlicePlacement
from k8s.render.packaged import leader_worker_set, model_server_set
from k8s.render.workload import template_of
from sax.names import ModelId
from sax.slices import TPU, TpuSlice

Object = dict[str, Any]
_INSTANCE = "app.kubernetes.io/instance"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_EXCLUSIVE_GROUPS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
# The controller of a LeaderWorkerSet sets these in its pods itself.
_OF_A_JOBSET = {"SAX_HOSTS", "JOBSET_NAME", "REPLICATED_JOB_NAME", "JOB_INDEX", "SAX_PRIMARY"}
_MAY_LOCK = "SYS_RESOURCE"
_MOST_CPUS = 0.5  # largest share of a machine's CPUs to request


def model_servers(order: Order, placed: SlicePlacement, model_id: ModelId) -> list[Object]:
    if order.kind in PATHWAYS_KINDS:
        return pathways_servers(order, placed, model_id)
    packaged = model_server_set()
    sets = [_jobset(packaged, name, order, placed, model_id) for name in order.set_names]
    if order.kind == "leaderworkerset":
        return [_leader_worker_set(leader_worker_set(), sets[0], order, placed.there)]
    return sets


def _jobset(
    packaged: Object, name: str, order: Order, placed: SlicePlacement, model_id: ModelId
) -> Object:
    made = copy.deepcopy(packaged)
    made["metadata"]["name"] = name
    made["metadata"]["labels"][_INSTANCE] = order.name
    if placed.there.hosts == 1:
        _share_pools(made)
    job = made["spec"]["replicatedJobs"][0]
    job["replicas"] = order.jobs
    hosts = placed.there.hosts
    job["template"]["spec"] |= {"parallelism": hosts, "completions": hosts}
    template = template_of(made)
    template["metadata"]["labels"][_INSTANCE] = order.name
    _place(template["spec"], order, placed.there)
    container = template["spec"]["containers"][0]
    _size(container, placed)
    if placed.there.generation.locks_memory:  # as in k8s/components/memlock, for the entry point
        container["securityContext"]["capabilities"]["add"] = [_MAY_LOCK]
    container["args"] = arguments(container["args"], name, order, placed.there, model_id)
    _set_variable(container, "SAX_HOSTS", str(hosts))
    return made


def _share_pools(workload: Object) -> None:
    """Allow replicas to share a node pool: with single hosts every node is its own slice."""
    annotations = workload["metadata"].get("annotations", {})
    for each in (_EXCLUSIVE, _EXCLUSIVE_GROUPS):
        annotations.pop(each, None)
    if not annotations:
        workload["metadata"].pop("annotations", None)


def _place(pod: Object, order: Order, there: TpuSlice) -> None:
    selector = pod.setdefault("nodeSelector", {})
    selector |= there.node_selector | order.capacity_labels
    if order.spot:
        pod["tolerations"].append(
            {"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        )
    order.images.apply(pod)


def _size(container: Object, placed: SlicePlacement) -> None:
    there, resources = placed.there, container["resources"]
    chips = str(there.chips_per_host)
    resources["requests"] |= {
        "memory": quantity(memory_request(there, placed.planned)),
        TPU: chips,
    }
    resources["limits"][TPU] = chips
    asked = int(resources["requests"]["cpu"])
    resources["requests"]["cpu"] = str(min(asked, int(there.machine.vcpus * _MOST_CPUS)))


def _set_variable(container: Object, name: str, value: str) -> None:
    (found,) = (each for each in container["env"] if each["name"] == name)
    found["value"] = value


def _leader_worker_set(packaged: Object, jobset: Object, order: Order, there: TpuSlice) -> Object:
    made = copy.deepcopy(packaged)
    template = template_of(jobset)
    pod = template["spec"]
    pod["restartPolicy"] = "Always"  # the only policy that StatefulSets, which own them, accept
    container = pod["containers"][0]
    container["env"] = [each for each in container["env"] if each["name"] not in _OF_A_JOBSET]
    made["metadata"]["name"] = order.name
    made["metadata"]["labels"][_INSTANCE] = order.name
    if there.hosts == 1:
        _share_pools(made)
    made["spec"]["replicas"] = order.replicas
    made["spec"]["leaderWorkerTemplate"] |= {"size": there.hosts, "workerTemplate": template}
    return made
