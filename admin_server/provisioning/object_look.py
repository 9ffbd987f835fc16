"""List the objects of a cell, and why those that are not ready are not: their queue, their pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from admin_server.provisioning.cluster import JOBSET, KINDS, Cluster, NotServed, ObjectKind
from admin_server.provisioning.manifest import Body, part, parts
from admin_server.provisioning.object_names import cell_labels
from admin_server.provisioning.present import Present, read_present
from admin_server.provisioning.workloads import OWNER_UID, WORKLOADS, by_owner, read_queue
from sax.names import CellId

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


_LOOKED_INTO = 4  # objects whose pods are listed in one look


async def look(cluster: Cluster, cell: CellId, needed: Collection[ObjectKind]) -> list[Present]:
    """All objects of this cell. Raises ClusterTrouble, and NotServed for a needed kind."""
    found: list[Present] = []
    for kind in KINDS:
        try:
            bodies = await cluster.objects(kind, cell_labels(cell))
        except NotServed:
            if kind in needed:
                raise
            continue  # no template uses it, and none existed
        read = (read_present(kind, body, cell) for body in bodies)
        found += [present for present in read if present is not None]
    return await _with_pods(cluster, await _with_queue(cluster, found))


async def _with_queue(cluster: Cluster, found: Sequence[Present]) -> list[Present]:
    """Add what Kueue says of unready objects that it queues, if it is there and we may see it."""
    queued = {p.uid for p in found if p.is_queued and p.state == "waiting"}
    if not queued:
        return list(found)
    try:
        workloads = by_owner(await cluster.objects(WORKLOADS, {OWNER_UID: sorted(queued)}))
    except NotServed as exc:
        return [p.with_unknown_queue(exc.text) if p.uid in queued else p for p in found]
    return [p.with_queue(read_queue(workloads.get(p.uid, ()))) for p in found]


async def _with_pods(cluster: Cluster, found: Sequence[Present]) -> list[Present]:
    """Add what the pods of unready objects report, if we may see them."""
    descriptions: dict[str, str] = {}
    waiting = [present for present in found if present.state == "waiting" and not present.held_up]
    for present in waiting[:_LOOKED_INTO]:
        try:
            pods = await cluster.objects(PODS, labels_of_pods(present.kind, present.name))
        except NotServed:
            break  # optional: we may lack the right to list pods
        descriptions[present.uid] = describe_pods(pods, present.pods)
    return [replace(present, pods_text=descriptions.get(present.uid, "")) for present in found]
