"""Describe the pods of an object that is not ready: how many are, and why others are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from admin_server.provisioning.cluster import JOBSET, ObjectKind
from admin_server.provisioning.manifest import Body, part, parts

PODS = ObjectKind("", "v1", "Pod", "pods")
_LONGEST = 200  # characters of a message from Kubernetes


def labels_of_pods(kind: ObjectKind, name: str) -> dict[str, str]:
    """Labels that the object's controller sets on its pods."""
    if kind is JOBSET:
        return {"jobset.sigs.k8s.io/jobset-name": name}
    return {"leaderworkerset.sigs.k8s.io/name": name}


def describe_pods(pods: Sequence[Body], wanted: int) -> str:
    """3 of 8 pods are ready: 0/12 nodes are available."""
    ready = sum(_holds(pod, "Ready") for pod in pods)
    state = f"{ready} of {max(wanted, len(pods))} pods are ready"
    why = next((trouble for pod in pods for trouble in _troubles(pod)), "")
    return f"{state}: {why[:_LONGEST]}" if why else state


def _holds(pod: Body, kind: str) -> bool:
    conditions = parts(part(pod, "status"), "conditions")
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)


def _troubles(pod: Body) -> Iterator[str]:
    """Why the pod has no node, or why one of its containers does not run."""
    status = part(pod, "status")
    for condition in parts(status, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            yield str(condition.get("message") or condition.get("reason") or "it has no node")
    for container in parts(status, "containerStatuses"):
        waiting = part(part(container, "state"), "waiting")
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            yield ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
