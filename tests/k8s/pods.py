"""The pods that a cluster would make of rendered manifests, each as its processes would see it.

Follows the controllers of Job, JobSet, LeaderWorkerSet and Deployment as they were seen to act on
a real API server, and that of PathwaysJobs as its source reads. Pure: no cluster, no clock; random
suffixes of names are written as x, and the caller gives the addresses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from k8s.render.pathways.expansion import jobset_of
from tests.k8s.kubelet import Container, answer_field, container_of, stores_of

Json = Mapping[str, Any]
_JOBSET, _LWS = "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"
_NO_UID = "00000000-0000-0000-0000-000000000000"
_TPU_PORT = 8476


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod; `hostname` is what its processes are told: with hostNetwork the node's."""

    name: str
    hostname: str
    subdomain: str
    labels: dict[str, str]
    containers: tuple[Container, ...] = ()
    owner: str = ""  # the replica it belongs to: a Job, a group, a Deployment
    index: int = 0  # within the owner
    spec: Json = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A pod before its containers are resolved."""

    pod: Pod
    template: Json
    added: Mapping[str, str]  # what the controller appends to every container's env


def pods_of(
    objects: Sequence[Json],
    address: Callable[[Pod], str] | None = None,
    namespace: str = "default",
) -> list[Pod]:
    """Every pod of the workloads among `objects`; `address` gives each its POD_IP.

    Raises ValueError for a reference that cannot be resolved within `objects`.
    """
    stores = stores_of(objects)
    pods = []
    for number, draft in enumerate(d for each in objects for d in _drafts(each, namespace)):
        ip = address(draft.pod) if address else f"10.0.{number // 250}.{number % 250 + 1}"
        if draft.pod.spec.get("hostNetwork"):
            draft = replace(draft, pod=replace(draft.pod, hostname=f"node-{number}"))
        pods.append(_resolved(draft, ip, namespace, stores))
    return pods


def _resolved(draft: _Draft, ip: str, namespace: str, stores: Any) -> Pod:
    pod = draft.pod
    # JobSet says all its own both in labels and in annotations.
    told = {key: value for key, value in pod.labels.items() if key.startswith(_JOBSET)}
    annotations = draft.template.get("metadata", {}).get("annotations") or {}
    metadata = {"labels": pod.labels, "annotations": {**annotations, **told}}
    answer = answer_field(
        {"metadata": metadata, "spec": pod.spec},
        {
            "metadata.name": pod.name,
            "metadata.namespace": namespace,
            "metadata.uid": _NO_UID,
            "status.podIP": ip,
            "status.podIPs": ip,
            "status.hostIP": ip if pod.spec.get("hostNetwork") else "10.255.0.1",
            "spec.nodeName": f"node-of-{pod.name}",
        },
    )
    containers = tuple(
        container_of(each, answer, stores, draft.added)
        for each in (*pod.spec.get("initContainers", ()), *pod.spec["containers"])
    )
    return replace(pod, containers=containers)


def _drafts(workload: Json, namespace: str) -> Iterator[_Draft]:
    name, kind = workload["metadata"]["name"], workload["kind"]
    match kind:
        case "Deployment":
            yield from _of_deployment(name, workload["spec"])
        case "Job":
            yield from _of_job(name, workload["spec"], "", {})
        case "JobSet":
            yield from _of_jobset(name, workload, namespace)
        case "PathwaysJob":
            yield from _of_jobset(name, jobset_of(workload), namespace)
        case "LeaderWorkerSet":
            yield from _of_leader_worker_set(name, workload["spec"], namespace)


def _draft(
    name: str, template: Json, labels: Mapping[str, str], added: Mapping[str, str], **of: Any
) -> _Draft:
    own = template.get("metadata", {}).get("labels") or {}
    spec = template["spec"]
    of.setdefault("hostname", spec.get("hostname", name))
    of.setdefault("subdomain", spec.get("subdomain", ""))
    return _Draft(Pod(name, labels={**own, **labels}, spec=spec, **of), template, added)


def _of_deployment(name: str, spec: Json) -> Iterator[_Draft]:
    labels = {"pod-template-hash": "x" * 10}
    for index in range(spec.get("replicas", 1)):
        yield _draft(
            f"{name}-{'x' * 10}-{index:05}", spec["template"], labels, {}, owner=name, index=index
        )


def _of_job(job: str, spec: Json, subdomain: str, labels: Mapping[str, str]) -> Iterator[_Draft]:
    template, indexed = spec["template"], spec.get("completionMode") == "Indexed"
    most = spec.get("completions", spec.get("parallelism", 1))
    ours = {"batch.kubernetes.io/job-name": job, "job-name": job, **labels}
    for index in range(min(spec.get("parallelism", 1), most)):
        if not indexed:
            yield _draft(f"{job}-{index:05}", template, ours, {}, owner=job, index=index)
            continue
        at = {"batch.kubernetes.io/job-completion-index": str(index)}
        yield _draft(
            f"{job}-{index}-xxxxx",
            template,
            {**ours, **at},
            {"JOB_COMPLETION_INDEX": str(index)},
            hostname=f"{job}-{index}",
            subdomain=subdomain or template["spec"].get("subdomain", ""),
            owner=job,
            index=index,
        )


def _of_jobset(name: str, jobset: Json, namespace: str) -> Iterator[_Draft]:
    spec, started = jobset["spec"], 0
    network = spec.get("network") or {}
    subdomain = network.get("subdomain") or name
    if not network.get("enableDNSHostnames", True):
        subdomain = ""
    count = sum(each.get("replicas", 1) for each in spec["replicatedJobs"])
    for each in spec["replicatedJobs"]:
        for index in range(each.get("replicas", 1)):
            job = f"{name}-{each['name']}-{index}"
            labels = _jobset_labels(jobset, each, index, started + index, count, namespace)
            yield from _of_job(job, each["template"]["spec"], subdomain, labels)
        started += each.get("replicas", 1)


def _jobset_labels(
    jobset: Json, job: Json, index: int, number: int, count: int, namespace: str
) -> dict[str, str]:
    name = jobset["metadata"]["name"]
    labels = {
        "jobset-name": name,
        "jobset-uid": _NO_UID,
        "replicatedjob-name": job["name"],
        "replicatedjob-replicas": str(job.get("replicas", 1)),
        "job-index": str(index),
        "job-global-index": str(number),
        "global-replicas": str(count),
        "group-name": job.get("groupName", "default"),
        "restart-attempt": "0",
        "job-key": _key(f"{namespace}/{name}-{job['name']}-{index}"),
    }
    if coordinator := jobset["spec"].get("coordinator"):
        labels["coordinator"] = coordinator_of(jobset, coordinator)
    return {_JOBSET + key: value for key, value in labels.items()}


def coordinator_of(jobset: Json, coordinator: Json) -> str:
    """The label that names host 0 of a JobSet that says who that is."""
    name = jobset["metadata"]["name"]
    subdomain = (jobset["spec"].get("network") or {}).get("subdomain") or name
    job, pod = coordinator.get("jobIndex", 0), coordinator.get("podIndex", 0)
    return f"{name}-{coordinator['replicatedJob']}-{job}-{pod}.{subdomain}"


def _of_leader_worker_set(name: str, spec: Json, namespace: str) -> Iterator[_Draft]:
    own = spec["leaderWorkerTemplate"]
    shared = (spec.get("networkConfig") or {}).get("subdomainPolicy", "Shared") == "Shared"
    for group in range(spec.get("replicas", 1)):
        leader = f"{name}-{group}"
        subdomain = name if shared else leader
        for index in range(own.get("size", 1)):
            template = own["workerTemplate"] if index else own.get("leaderTemplate")
            template = template or own["workerTemplate"]
            labels = {
                f"{_LWS}name": name,
                f"{_LWS}group-index": str(group),
                f"{_LWS}worker-index": str(index),
                f"{_LWS}group-key": _key(f"{namespace}/{leader}"),
            }
            yield _draft(
                f"{leader}-{index}" if index else leader,
                template,
                labels,
                _group_variables(own, leader, subdomain, namespace, index),
                subdomain=subdomain,
                owner=leader,
                index=index,
            )


def _group_variables(
    own: Json, leader: str, subdomain: str, namespace: str, index: int
) -> dict[str, str]:
    size = own.get("size", 1)
    variables = {
        "LWS_LEADER_ADDRESS": f"{leader}.{subdomain}.{namespace}",
        "LWS_GROUP_SIZE": str(size),
        "LWS_WORKER_INDEX": str(index),
    }
    if not _wants_tpu(own["workerTemplate"]):
        return variables
    # A leader without TPUs is no TPU worker.
    first = 0 if _wants_tpu(own.get("leaderTemplate") or own["workerTemplate"]) else 1
    if index < first:
        return variables
    hosts = [f"{leader}-{each}" if each else leader for each in range(first, size)]
    addresses = [f"{host}.{subdomain}" for host in hosts]
    return variables | {
        "TPU_WORKER_HOSTNAMES": ",".join(addresses),
        "TPU_WORKER_ID": str(index - first),
        "TPU_NAME": leader,
        "TPU_PROCESS_ADDRESSES": ",".join(f"{each}:{_TPU_PORT}" for each in addresses),
        "TPU_PROCESS_PORT": str(_TPU_PORT),
    }


def _wants_tpu(template: Json) -> bool:
    return any(
        "google.com/tpu" in (each.get("resources", {}).get("limits") or {})
        for each in template["spec"]["containers"]
    )


def _key(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
