"""Renders the JobSets, the LeaderWorkerSet or the PathwaysJobs of model servers for an order.

All kinds use the pod of the packaged JobSet; they differ in which controller creates the pods and
tells them their ordinals.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from k8s.render.fields import template_of
from k8s.render.order import PATHWAYS_JOBSET, PATHWAYS_KINDS, SPOT, Order, Planned, SlicePlacement
from k8s.render.packaged import leader_worker_set, model_server_set
from k8s.render.pathways.component import PROXY, WORKER
from k8s.render.pathways.expansion import jobset_of
from k8s.render.pathways.options import COLOCATED, PathwaysOptions
from sax.names import ModelId
from sax.slices import TPU, TpuSlice

# The PathwaysJob of one model server. Pure.

Object = dict[str, Any]
API_VERSION = "pathways-job.pathways.domain/v1"


def pathways_job(
    metadata: Object,
    head: Object,
    there: TpuSlice,
    options: PathwaysOptions,
    *,
    directory: str,
    our_image: str,
    node_selector: Mapping[str, str],
) -> Object:
    """Return the PathwaysJob whose controller runs `head` beside a resource manager and a proxy.

    metadata: with name and labels. head: pod template; its first container is the model server.
    directory: pathwaysDir where the options name none. our_image: of components that are ours.
    node_selector: labels of the workers' nodes, besides those in the options.
    """
    components = [
        each.manifest(our_image, trusts_network=options.trusts_network)
        for each in options.components
    ]
    spec = {
        "maxRestarts": options.max_restarts,
        "pathwaysDir": options.directory or directory,
        "pathwaysVersion": options.version,
        "workers": [_workers(there, options, node_selector)],
        "controller": _controller(head, options),
        "customComponents": components or None,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": "PathwaysJob",
        "metadata": metadata,
        "spec": _present(spec),
    }


def _workers(there: TpuSlice, options: PathwaysOptions, selector: Mapping[str, str]) -> Object:
    found = {
        "type": there.machine.name,
        "topology": there.size,
        "numSlices": options.slices,
        "maxSliceRestarts": options.max_slice_restarts,
        "terminationGracePeriodSeconds": options.worker_grace_seconds,
        "priorityClassName": options.worker_priority_class,
        "nodeSelector": {**selector, **options.node_selector} or None,
    }
    return _present(found)


def _controller(head: Object, options: PathwaysOptions) -> Object:
    found = {
        "deploymentMode": options.deployment_mode,
        "mainContainerName": head["spec"]["containers"][0]["name"],
        "enableMetricsCollection": options.collects_metrics or None,
        "elasticSlices": options.elastic_slices or None,
        "template": head,
    }
    return _present(found)


def _present(fields: Object) -> Object:
    return {name: value for name, value in fields.items() if value is not None}


_NAME = "app.kubernetes.io/name"
_LIBTPU = "libtpu"  # a port that only processes with chips have
# As the images' own user. Of the container, not of the pod: Google's run there as root.
_PLAIN_USER = {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001}
_RESOURCES = {"requests": {"cpu": "8", "memory": "32Gi"}}
_PLAINTEXT = {"name": "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "value": "true"}


def pathways_servers(order: Order, placed: SlicePlacement, model_id: ModelId) -> list[Object]:
    """Return a PathwaysJob for each replica, or the JobSet that it becomes."""
    jobs = [_job(name, order, placed, model_id) for name in order.set_names]
    return [_plain(job, order, placed) for job in jobs] if order.kind == PATHWAYS_JOBSET else jobs


def _job(name: str, order: Order, placed: SlicePlacement, model_id: ModelId) -> Object:
    packaged = copy.deepcopy(model_server_set())
    labels = packaged["metadata"]["labels"] | {_NAME: order.name, _INSTANCE: order.name}
    head = template_of(packaged)
    container = head["spec"]["containers"][0]
    our_image = order.images.image(container["image"])
    _make_head(head, order)
    container["args"] = arguments(container["args"], name, order, placed.there, model_id)
    return pathways_job(
        {"name": name, "labels": labels},
        head,
        placed.there,
        order.pathways,
        directory=f"{order.bucket.url}/pathways",
        our_image=our_image,
        node_selector=order.capacity_labels,
    )


def _make_head(head: Object, order: Order) -> None:
    """Turn the pod of a TPU host into one without chips, a gang or need of root, in place."""
    head["metadata"]["labels"][_INSTANCE] = order.name
    pod = head["spec"]
    if order.pathways.deployment_mode != COLOCATED:  # beside workers it is on their tainted nodes
        del pod["tolerations"]
    del pod["securityContext"]["runAsUser"]
    order.images.apply(pod)
    container = pod["containers"][0]
    container["securityContext"] |= _PLAIN_USER
    # JAX_PLATFORMS=proxy and JAX_BACKEND_TARGET are put beside this by the controller.
    env = [each for each in container["env"] if each["name"] == "POD_IP"]
    is_plain = order.pathways.trusts_network and order.pathways.uses_our(PROXY)
    container["env"] = [*env, _PLAINTEXT] if is_plain else env
    container["resources"] = copy.deepcopy(_RESOURCES)
    container["ports"] = [each for each in container["ports"] if each["name"] != _LIBTPU]


def _plain(job: Object, order: Order, placed: SlicePlacement) -> Object:
    """Return the job's JobSet with what its controller drops or cannot say."""
    made = jobset_of(job)
    head, workers = (
        each["template"]["spec"]["template"] for each in made["spec"]["replicatedJobs"]
    )
    own = copy.deepcopy(job["spec"]["controller"]["template"]["metadata"])
    added = head.get("metadata", {}).get("annotations", {})
    head["metadata"] = own | {"annotations": own["annotations"] | added}
    pod = workers["spec"]
    pod["serviceAccountName"] = head["spec"]["serviceAccountName"]
    if order.pathways.uses_our(WORKER):
        pod["containers"][0]["securityContext"] = _with_chips(placed.there.generation.locks_memory)
    return made


def _with_chips(locks_memory: bool) -> Object:
    """Return the rights of our worker: the device files of a TPU belong to root alone."""
    rights = {"drop": ["ALL"], **({"add": [_MAY_LOCK]} if locks_memory else {})}
    return {"runAsUser": 0, "allowPrivilegeEscalation": False, "capabilities": rights}


_GIB = 2**30
_PROCESS = 12 * _GIB  # Python, jax, libtpu, and the compiler at its largest bucket
_UNPLANNED = 32 * _GIB  # as in the manifests, where nothing is known
_OTHERS = 2 * _GIB  # logging, metrics and network agents on every node


def memory_request(there: TpuSlice, planned: Planned | None) -> int:
    """Return the bytes to request for one host, in whole GiB.

    Weights pass through the host on their way to its chips: each host reads the parts held by its
    own devices, two tensors at a time, and the data read stays in the page cache until something
    else needs the memory. So a host needs much less than its weights, but uses as much while it
    loads. The request covers the larger need: the process, plus all weights of this host's devices
    once. A pod below its request is evicted last when a node runs short.

    Every TPU machine has more memory than its chips, so this fits. The request never exceeds what
    a node can give after its own reservation and its agents; otherwise the pod would wait forever
    for a larger node. There is no limit: a machine serves one pod alone (which has all the chips),
    and there is no reason to kill it while memory is free.

    Without a plan the size of the weights is unknown, and the request is a moderate constant.
    """
    most = there.machine.allocatable - _OTHERS
    wanted = _UNPLANNED
    if planned is not None:
        wanted = _PROCESS + planned.weights_of_slice // there.hosts
    return max(min(-(-wanted // _GIB), most // _GIB), 1) * _GIB


def quantity(size: int) -> str:
    return f"{size // _GIB}Gi"


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


def arguments(
    given: Sequence[str], name: str, order: Order, there: TpuSlice, model_id: ModelId
) -> list[str]:
    """Return the packaged arguments with an order's in them; `name`: of the set they belong to.

    The cell is none of them: every process has it from the ConfigMap, see k8s/control/cell.yaml.
    """
    ours = {
        "--platform_chip": there.platform_chip,
        "--platform_topology": there.size,
        "--slots": order.slots,
        "--max_context": order.max_context,
        "--tags": f"model:{model_id},set:{name}" if order.is_reserved else None,
    }
    flags = dict(_flag(text) for text in given)
    flags |= {flag: str(value) for flag, value in ours.items() if value is not None}
    return [f"{flag}={value}" for flag, value in flags.items()]


def _flag(text: str) -> tuple[str, str]:
    flag, _, value = text.partition("=")
    return flag, value
