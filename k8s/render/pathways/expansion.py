"""The JobSet that the controller of PathwaysJobs makes of one. Pure.

With the defaults that JobSet's webhook fills in where they matter: completionMode, restartPolicy.
"""

from __future__ import annotations

import copy
from typing import Any

from k8s.render.fields import number, part, parts, text
from k8s.render.pathways.containers import (
    SHARED_TMP,
    proxy,
    resource_manager,
    sidecar,
    slice_of_workers,
    variables_of_main,
    worker,
)
from k8s.render.pathways.options import COLOCATED

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
