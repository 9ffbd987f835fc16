"""Checks what creates sax pods and what they use: Deployments, JobSets, Services, volumes."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.doctor.finding import OK, PROBLEM, WARNING, Finding
from k8s.doctor.queues import QUEUE_NAME, workloads_of
from k8s.doctor.snapshot import ClusterNeeds, Snapshot, is_ours
from k8s.render.fields import (
    Object,
    condition,
    holds,
    is_set,
    label,
    name_of,
    number,
    parts,
    text,
)
from k8s.render.workload import replicas_of


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    where = snapshot.namespace
    for kind, look in (
        ("deployments", _deployment),
        ("jobsets", _jobset),
        ("leaderworkersets", _group_set),
        ("services", _service),
        ("persistentvolumeclaims", _claim),
    ):
        for thing in snapshot.of(kind):
            if is_ours(thing) and not _is_told_of(thing, snapshot):
                yield from look(thing, where)


def _is_told_of(thing: Object, snapshot: Snapshot) -> bool:
    """Return True for a set that its queue holds back: the check of queues says why."""
    is_queued = label(thing, QUEUE_NAME) and snapshot.knows("workloads")
    return is_set(thing, "spec", "suspend") and bool(is_queued or workloads_of(thing, snapshot))


def _deployment(thing: Object, where: str) -> Iterator[Finding]:
    name = name_of(thing)
    wanted, ready = replicas_of(thing), number(thing, "status", "readyReplicas")
    told = f"{ready} of {wanted} pods of {name} are ready"
    if ready >= wanted:
        yield Finding(OK, "deployments", told)
        return
    failure = condition(thing, "ReplicaFailure")
    if text(failure, "status") == "True":
        told += f": {text(failure, 'message')}"
    # One ready pod is enough to serve; the other is a standby.
    level = WARNING if ready else PROBLEM
    yield Finding(level, "deployments", told, f"kubectl -n {where} describe deployment {name}")


def _jobset(thing: Object, where: str) -> Iterator[Finding]:
    name = name_of(thing)
    describe = f"kubectl -n {where} describe jobset {name}"
    failed = condition(thing, "Failed")
    if text(failed, "status") == "True":
        yield Finding(
            PROBLEM,
            "jobsets",
            f"{name} has failed permanently ({text(failed, 'message') or text(failed, 'reason')}): "
            "its pods will not come back",
            f"kubectl -n {where} delete jobset {name}   and apply its manifest again",
        )
        return
    if is_set(thing, "spec", "suspend"):
        yield _suspended(thing, where)
        return
    restarts, wanted = number(thing, "status", "restarts"), replicas_of(thing)
    ready = sum(number(job, "ready") for job in parts(thing, "status", "replicatedJobsStatus"))
    if restarts:
        yield Finding(WARNING, "jobsets", f"{name} was restarted {restarts} times", describe)
    if ready >= wanted:
        yield Finding(OK, "jobsets", f"{name} has all hosts of {_counted(wanted)} ready")
    else:
        told = f"{name} has all hosts ready in {ready} of {wanted} replicas"
        yield Finding(WARNING, "jobsets", told, describe)


def _suspended(thing: Object, where: str) -> Finding:
    name = name_of(thing)
    if queue := label(thing, QUEUE_NAME):  # its workloads could not be read
        told = f"the queue {queue} of Kueue holds it, or gave it up"
        remedy = f"kubectl -n {where} get workloads"
    else:
        told = "somebody suspended it"
        remedy = f"kubectl -n {where} patch jobset {name} --type=merge -p "
        remedy += '\'{"spec":{"suspend":false}}\''
    return Finding(WARNING, "jobsets", f"{name} is suspended: {told}", remedy)


def _group_set(thing: Object, where: str) -> Iterator[Finding]:
    name, wanted = name_of(thing), replicas_of(thing)
    ready = number(thing, "status", "readyReplicas")
    told = f"{name} has all hosts ready in {ready} of {wanted} replicas"
    if ready >= wanted or holds(thing, "Available"):
        yield Finding(OK, "leaderworkersets", told)
        return
    describe = f"kubectl -n {where} describe leaderworkerset {name}"
    yield Finding(WARNING, "leaderworkersets", told, describe)


def _service(thing: Object, where: str) -> Iterator[Finding]:
    name = name_of(thing)
    if text(thing, "spec", "type") != "LoadBalancer":
        return
    given = parts(thing, "status", "loadBalancer", "ingress")
    address = next((text(each, "ip") or text(each, "hostname") for each in given), "")
    port = next((text(each, "port") for each in parts(thing, "spec", "ports")), "")
    if address:
        yield Finding(OK, "address", f"{name} answers at http://{address}:{port}")
        return
    yield Finding(
        PROBLEM,
        "address",
        f"{name} has no address yet; clouds assign one within minutes, kind and minikube do not",
        f"kubectl -n {where} describe service {name}   or meanwhile: kubectl -n {where} "
        f"port-forward service/{name} {port}",
    )


def _claim(thing: Object, where: str) -> Iterator[Finding]:
    name, phase = name_of(thing), text(thing, "status", "phase")
    if phase != "Bound":
        told = f"PersistentVolumeClaim {name} is {phase or 'unknown'}: pods that mount it wait"
        describe = f"kubectl -n {where} describe persistentvolumeclaim {name}"
        yield Finding(PROBLEM, "volumes", told, describe)


def _counted(replicas: int) -> str:
    return "its replica" if replicas == 1 else f"{replicas} replicas"
