"""The JobSet that the controller of PathwaysJobs makes of one. Pure.

With the defaults that JobSet's webhook fills in where they matter: completionMode, restartPolicy.
"""

from __future__ import annotations

import copy
from typing import Any

from k8s.render.fields import is_set, number, part, parts, text
from k8s.render.pathways.component import PROXY, RESOURCE_MANAGER, SIDECAR, WORKER
from k8s.render.pathways.options import COLOCATED, PathwaysSlice

PROXY_PORT, MANAGER_PORT, WORKER_PORT, SIDECAR_PORT = 29000, 29001, 29005, 50051
SHARED_TMP = "shared-tmp"
_LABELS = "metadata.labels['jobset.sigs.k8s.io/{}']"
_ANNOTATIONS = "metadata.annotations['jobset.sigs.k8s.io/{}']"
_GOOGLES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/"
_MANAGER = f"--resource_manager_address=$(PATHWAYS_HEAD):{MANAGER_PORT}"
_MOUNTS = [{"name": SHARED_TMP, "mountPath": "/tmp"}]


def slice_of_workers(job: Object) -> PathwaysSlice:
    workers = parts(job, "spec", "workers")[0]
    return PathwaysSlice(text(workers, "type"), text(workers, "topology"))


def resource_manager(job: Object) -> Object:
    workers = parts(job, "spec", "workers")[0]
    flags = [
        f"--server_port={MANAGER_PORT}",
        _scratch(job),
        "--node_type=resource_manager",
        f"--instance_count={number(workers, 'numSlices')}",
        f"--instance_type={slice_of_workers(job).instance_type}",
    ]
    env = [
        _field("REPLICATED_JOB_NAME", _ANNOTATIONS, "replicatedjob-name"),
        _field("JOBSET_NAME", _ANNOTATIONS, "jobset-name"),
        _field("HOST_ADDRESS", _LABELS, "coordinator"),
        {"name": "TPU_SKIP_MDS_QUERY", "value": "true"},
    ]
    ports, limits = (MANAGER_PORT, 29002), {"cpu": "8", "memory": "32G"}
    return _program("pathways-rm", job, RESOURCE_MANAGER, flags, env, ports, limits)


def proxy(job: Object) -> Object:
    flags = [f"--server_port={PROXY_PORT}", _MANAGER, _scratch(job)]
    env = [_field("PATHWAYS_HEAD", _LABELS, "coordinator")]
    limits = {"cpu": "16", "memory": "100G"}
    made = _program("pathways-proxy", job, PROXY, flags, env, (PROXY_PORT,), limits)
    if elastic := number(job, "spec", "controller", "elasticSlices"):
        made["args"].append(f"--num_elastic_slices={elastic}")  # even after custom flags
    return made


def worker(job: Object) -> Object:
    flags = [f"--server_port={WORKER_PORT}", _MANAGER, _scratch(job)]
    env = [
        {"name": "TPU_MIN_LOG_LEVEL", "value": "0"},
        {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "0"},
        {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
        {"name": "MEGASCALE_GRPC_ENABLE_XOR_TRACER", "value": "false"},
        _field("MEGASCALE_NUM_SLICES", _LABELS, "replicatedjob-replicas"),
        _field("JOBSET_NAME", _ANNOTATIONS, "jobset-name"),
        _field("REPLICATED_JOB_NAME", _ANNOTATIONS, "replicatedjob-name"),
        _field("MEGASCALE_SLICE_ID", _LABELS, "job-index"),
        _field("PATHWAYS_HEAD", _LABELS, "coordinator"),
        _field("MEGASCALE_COORDINATOR_ADDRESS", _LABELS, "coordinator"),
    ]
    limits = {"google.com/tpu": str(slice_of_workers(job).chips_per_host)}
    ports = (WORKER_PORT, 29006, 8471, 8080)
    made = _program("pathways-worker", job, WORKER, flags, env, ports, limits)
    return made | {"volumeMounts": copy.deepcopy(_MOUNTS)}


def sidecar(job: Object) -> Object | None:
    """Return the colocated Python sidecar of each worker; None if the job names no image of one."""
    image = text(_component(job, SIDECAR), "image")
    if not image:
        return None
    return {
        "name": "colocated-python-sidecar",
        "image": image,
        "imagePullPolicy": "Always",
        "restartPolicy": "Always",
        # The quotes are part of the value.
        "env": [{"name": "GRPC_SERVER_ADDRESS", "value": f"'0.0.0.0:{SIDECAR_PORT}'"}],
        "ports": [{"containerPort": SIDECAR_PORT}],
        "volumeMounts": copy.deepcopy(_MOUNTS),
    }


def variables_of_main() -> list[Object]:
    """Return what is put behind the variables of the main container."""
    return [
        _field("PATHWAYS_HEAD", _LABELS, "coordinator"),
        {"name": "JAX_PLATFORMS", "value": "proxy"},
        {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
        {"name": "JAX_BACKEND_TARGET", "value": f"grpc://$(PATHWAYS_HEAD):{PROXY_PORT}"},
    ]


def _program(
    name: str,
    job: Object,
    kind: str,
    flags: list[str],
    env: list[Object],
    ports: tuple[int, ...],
    limits: dict[str, str],
) -> Object:
    custom = _component(job, kind)
    if is_set(job, "spec", "controller", "enableMetricsCollection"):
        flags = [*flags, "--enable_metrics_collection=true"]
    return {
        "name": name,
        "image": text(custom, "image") or _googles(job, kind),
        "imagePullPolicy": "Always",
        "args": [*flags, *custom.get("customFlags", ())],
        "env": [*env, *copy.deepcopy(custom.get("customEnv", []))],
        "ports": [{"containerPort": port} for port in ports],
        "resources": {"limits": limits},
    }


def _component(job: Object, kind: str) -> Object:
    found = parts(job, "spec", "customComponents")
    none: Object = {}
    return next((each for each in found if each["componentType"] == kind), none)


def _googles(job: Object, kind: str) -> str:
    name = "proxy_server" if kind == PROXY else "server"
    return f"{_GOOGLES}{name}:{text(job, 'spec', 'pathwaysVersion') or 'latest'}"


def _scratch(job: Object) -> str:
    return f"--gcs_scratch_location={text(job, 'spec', 'pathwaysDir')}"


def _field(name: str, place: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": place.format(key)}}}


Object = dict[str, Any]
HEAD_JOB, WORKER_JOB = "pathways-head", "worker"
_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NODE, _NODE_POOL = "kubernetes.io/hostname", "cloud.google.com/gke-nodepool"
_HOST_NETWORK: Object = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
_RESTARTS_OF_A_HOST = 4  # of each, added up for a slice, where no slice may be missing


def jobset_of(job: Object) -> Object:
    """Expand a PathwaysJob of the right form. The job stays as it is.

    Without a template in it (headless) the resource manager and the proxy are the head's own
    containers, for clients outside of the JobSet.
    """
    spec: Object = {
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "failurePolicy": {"maxRestarts": number(job, "spec", "maxRestarts")},
        "coordinator": {"replicatedJob": HEAD_JOB, "jobIndex": 0, "podIndex": 0},
        "replicatedJobs": [_head_job(job), _worker_job(job)],
    }
    if part(job, "spec", "controller", "template"):
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": [HEAD_JOB]}
    kept = {"name", "namespace", "labels", "annotations"}
    metadata = {key: value for key, value in part(job, "metadata").items() if key in kept}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": copy.deepcopy(metadata),
        "spec": spec,
    }


def _head_job(job: Object) -> Object:
    annotations = dict(part(job, "metadata", "annotations"))
    if not _is_colocated(job):
        annotations[_EXCLUSIVE] = _NODE  # else several heads could meet on a node and its ports
    metadata = {"metadata": {"annotations": annotations}} if annotations else {}
    template = {**copy.deepcopy(metadata), "spec": _head_pod(job)}
    indexed = _job(hosts=1, restarts=0, template=template)
    return {"name": HEAD_JOB, "replicas": 1, "template": {**metadata, "spec": indexed}}


def _head_pod(job: Object) -> Object:
    own = copy.deepcopy(part(job, "spec", "controller", "template", "spec"))
    pod = {**own, **_HOST_NETWORK}
    programs = [resource_manager(job), proxy(job)]
    if own:  # sidecars: they start before the main container and end after it
        always = [{**each, "restartPolicy": "Always"} for each in programs]
        pod["initContainers"] = [*own.get("initContainers", ()), *always]
        _connect(pod, text(job, "spec", "controller", "mainContainerName") or "main")
    else:
        pod |= {"containers": programs, "restartPolicy": "OnFailure"}
    if _is_colocated(job):
        pod["nodeSelector"] = _node_selector(job)
    return pod


def _connect(pod: Object, main: str) -> None:
    """Tell the main container where the proxy is; containers of other names stay as they are."""
    for container in pod["containers"]:
        if container["name"] == main:
            container["env"] = [*container.get("env", ()), *variables_of_main()]


def _worker_job(job: Object) -> Object:
    workers, hosts = _workers(job), slice_of_workers(job).hosts
    restarts = _RESTARTS_OF_A_HOST
    if number(job, "spec", "controller", "elasticSlices"):
        given = number(workers, "maxSliceRestarts") if "maxSliceRestarts" in workers else 1
        restarts = given or restarts  # 1 is the schema's default; the controller passes over a 0
    template = {"metadata": {"annotations": {_EXCLUSIVE: _NODE_POOL}}, "spec": _worker_pod(job)}
    spec = _job(hosts, restarts * hosts, template)
    return {
        "name": WORKER_JOB,
        "replicas": number(workers, "numSlices"),
        "template": {"spec": spec},
    }


def _worker_pod(job: Object) -> Object:
    workers, beside = _workers(job), sidecar(job)
    named = ("terminationGracePeriodSeconds", "priorityClassName")
    return {
        **{name: workers[name] for name in named if name in workers},
        "restartPolicy": "OnFailure",
        **_HOST_NETWORK,
        "nodeSelector": _node_selector(job),
        **({"affinity": _affinity(text(job, "metadata", "name"))} if _is_colocated(job) else {}),
        **({"initContainers": [beside]} if beside else {}),
        "containers": [worker(job)],
        "volumes": [
            {"name": SHARED_TMP, "hostPath": {"path": "/tmp", "type": "DirectoryOrCreate"}}
        ],
    }


def _job(hosts: int, restarts: int, template: Object) -> Object:
    return {
        "completionMode": "Indexed",
        "parallelism": hosts,
        "completions": hosts,
        "backoffLimit": restarts,
        "template": template,
    }


def _workers(job: Object) -> Object:
    return parts(job, "spec", "workers")[0]


def _node_selector(job: Object) -> dict[str, str]:
    return {**part(_workers(job), "nodeSelector"), **slice_of_workers(job).node_selector}


def _is_colocated(job: Object) -> bool:
    return text(job, "spec", "controller", "deploymentMode") == COLOCATED


def _affinity(name: str) -> Object:
    """Return the rules that let the head onto the slices of its own JobSet, and no other Job."""
    ours = {"key": _JOBSET_NAME, "operator": "In", "values": [name]}
    others = [
        {"key": _JOBSET_NAME, "operator": "NotIn", "values": [name]},
        {"key": "job-name", "operator": "Exists"},
    ]
    return {"podAffinity": _required([ours]), "podAntiAffinity": _required(others)}


def _required(expressions: list[Object]) -> Object:
    term = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": _NODE_POOL}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
