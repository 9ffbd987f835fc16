"""An object of this cell in Kubernetes: which model it is for, and its state.

Read from the status of JobSets and LeaderWorkerSets.

Those that are not ready say why: their queue, their pods.

Kueue deactivates a Workload for good when its capacity is taken back, its requests for nodes or its
requeuing reach their limit, or its time is over; the object then stays suspended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from admin_server.provisioning.cluster import (
    JOBSET,
    KINDS,
    Body,
    Cluster,
    NotServed,
    ObjectKind,
    annotations_of,
    labels_of,
    part,
    parts,
)
from admin_server.provisioning.object_names import (
    DEVICES,
    MODEL,
    TEMPLATE,
    TEMPLATE_HASH,
    cell_labels,
)
from admin_server.provisioning.templates import pods_of
from sax.errors import InvalidName
from sax.names import CellId, ModelId

_QUEUED = "is suspended: it is queued for machines"
_PODS = ObjectKind("", "v1", "Pod", "pods")
_LONGEST = 200  # characters of a message from Kubernetes or Kueue
WORKLOADS = ObjectKind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
OWNER_UID = "kueue.x-k8s.io/job-uid"  # label of a Workload
QUEUE_NAME = "kueue.x-k8s.io/queue-name"  # label of an object that Kueue queues
_BY_KUEUE = "DeactivatedDueTo"  # how the reason of an eviction begins, unless a person did it


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    kind: ObjectKind
    name: str
    uid: str
    model_id: str
    template: str = ""
    template_hash: str = ""
    devices: int = 0
    made_at_s: float = 0.0
    leaving: bool = False  # deleted, but not completely gone
    ready: bool = False  # all of its pods are ready
    failure: str = ""  # why it will never become ready
    held_up: str = ""  # why it has not started
    queue: str = ""  # of Kueue, by its label
    pods: int = 0  # wanted number of pods
    pods_text: str = ""  # state of the pods, as text

    @property
    def title(self) -> str:
        return f"{self.kind.kind} {self.name}"

    @property
    def state(self) -> str:
        """The state in one word, for metrics."""
        if self.leaving:
            return "leaving"
        if self.failure:
            return "failed"
        return "ready" if self.ready else "waiting"

    @property
    def is_queued(self) -> bool:
        """True if a Workload of Kueue may stand for it."""
        return bool(self.queue or self.held_up)

    def with_queue(self, queue: QueueState) -> Present:
        if queue.given_up:
            return replace(self, failure=queue.given_up)
        if queue.held_by:
            why = f"is suspended: somebody deactivated its Kueue workload {queue.held_by}"
            return replace(self, held_up=why)
        waits_for = queue.waits_for and f"{_QUEUED}: {queue.waits_for}"
        return replace(self, held_up=waits_for or self.held_up)

    def with_unknown_queue(self, why: str) -> Present:
        """If it is suspended, say why the reason is unknown."""
        return replace(self, held_up=f"{self.held_up}; {why}") if self.held_up else self

    def describe(self, now: float) -> str:
        age = f"was created {_duration(now - self.made_at_s)} ago"
        if self.held_up:
            return f"{self.title} {age} and {self.held_up}"
        pods = "all its pods are ready" if self.ready else "its pods are not all ready"
        return f"{self.title} {age}; {self.pods_text or pods}"


def read_present(kind: ObjectKind, body: Body, cell: CellId) -> Present | None:
    """None for an object that this cell's admin servers did not create."""
    metadata, annotations, labels = part(body, "metadata"), annotations_of(body), labels_of(body)
    if any(labels.get(name) != value for name, value in cell_labels(cell).items()):
        return None
    try:
        model_id = ModelId.parse(annotations.get(MODEL, ""))
    except InvalidName:
        return None
    if model_id.cell_id != cell:
        return None
    devices = annotations.get(DEVICES, "")
    return Present(
        kind=kind,
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        model_id=str(model_id),
        template=annotations.get(TEMPLATE, ""),
        template_hash=annotations.get(TEMPLATE_HASH, ""),
        devices=int(devices) if devices.isascii() and devices.isdigit() else 0,
        made_at_s=_moment(metadata.get("creationTimestamp")),
        leaving="deletionTimestamp" in metadata,
        ready=_is_ready(kind, body),
        failure=_failure(kind, body),
        held_up=_held_up(body),
        queue=labels.get(QUEUE_NAME, ""),
        pods=sum(some.count for some in pods_of(kind, body)),
    )


def _is_ready(kind: ObjectKind, body: Body) -> bool:
    spec, status = part(body, "spec"), part(body, "status")
    if kind is not JOBSET:
        return int(status.get("readyReplicas") or 0) >= int(spec.get("replicas") or 1)
    jobs = parts(status, "replicatedJobsStatus")
    ready = {str(job.get("name")): int(job.get("ready") or 0) for job in jobs}
    jobs = parts(spec, "replicatedJobs")
    return bool(jobs) and all(
        ready.get(str(job.get("name")), 0) >= int(job.get("replicas") or 1) for job in jobs
    )


def _failure(kind: ObjectKind, body: Body) -> str:
    """A JobSet that failed or completed does not start again by itself."""
    if kind is not JOBSET:
        return ""
    for condition in _conditions(body):
        if condition.get("type") in ("Failed", "Completed"):
            why = condition.get("message") or condition.get("reason") or "no reason given"
            return f"it {str(condition['type']).lower()}: {why}"
    state = str(part(body, "status").get("terminalState") or "")
    return f"it {state.lower()}" if state else ""


def _held_up(body: Body) -> str:
    suspended = any(condition.get("type") == "Suspended" for condition in _conditions(body))
    if suspended or part(body, "spec").get("suspend"):
        return _QUEUED
    return ""


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _duration(seconds: float) -> str:
    """40 s, 12 min, 3 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _labels_of_pods(kind: ObjectKind, name: str) -> dict[str, str]:
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
        workloads = _by_owner(await cluster.objects(WORKLOADS, {OWNER_UID: sorted(queued)}))
    except NotServed as exc:
        return [p.with_unknown_queue(exc.text) if p.uid in queued else p for p in found]
    return [p.with_queue(read_queue(workloads.get(p.uid, ()))) for p in found]


async def _with_pods(cluster: Cluster, found: Sequence[Present]) -> list[Present]:
    """Add what the pods of unready objects report, if we may see them."""
    descriptions: dict[str, str] = {}
    waiting = [present for present in found if present.state == "waiting" and not present.held_up]
    for present in waiting[:_LOOKED_INTO]:
        try:
            pods = await cluster.objects(_PODS, _labels_of_pods(present.kind, present.name))
        except NotServed:
            break  # optional: we may lack the right to list pods
        descriptions[present.uid] = describe_pods(pods, present.pods)
    return [replace(present, pods_text=descriptions.get(present.uid, "")) for present in found]


@dataclass(frozen=True, slots=True)
class QueueState:
    """Each is "" if it does not apply."""

    given_up: str = ""  # why Kueue will never start the object again
    held_by: str = ""  # the Workload that a person deactivated: theirs to activate
    waits_for: str = ""  # what keeps it in the queue


def read_queue(workloads: Sequence[Body]) -> QueueState:
    """The state of one object from all of its Workloads.

    One that may still start is enough: Kueue replaces the Workloads of elastic jobs.
    """
    ended = [why for workload in workloads if (why := _end(workload))]
    held = [workload for workload in workloads if not _is_active(workload) and not _end(workload)]
    if workloads and len(ended) == len(workloads):
        return QueueState(given_up=ended[0])
    if workloads and len(ended) + len(held) == len(workloads):
        return QueueState(held_by=str(part(held[0], "metadata").get("name", "")))
    return QueueState(waits_for=next((w for each in workloads if (w := _waits_for(each))), ""))


def _by_owner(workloads: Sequence[Body]) -> dict[str, list[Body]]:
    """The Workloads by the uid of the object they stand for."""
    found: dict[str, list[Body]] = {}
    for workload in workloads:
        found.setdefault(labels_of(workload).get(OWNER_UID, ""), []).append(workload)
    return found


def _end(workload: Body) -> str:
    """Why it is finished, or why Kueue itself deactivated it; "" for neither."""
    for condition in _conditions(workload):
        if condition.get("type") == "Finished":
            return f"Kueue takes it for finished: {_message(condition)}"
    if _is_active(workload):
        return ""
    for condition in _conditions(workload):
        by_kueue = str(condition.get("reason") or "").startswith(_BY_KUEUE)
        if condition.get("type") == "DeactivationTarget" or (
            condition.get("type") == "Evicted" and by_kueue
        ):
            return f"Kueue deactivated its workload: {_message(condition)}"
    # An earlier eviction hides the cause; the check that ended it is still there.
    for check in parts(part(workload, "status"), "admissionChecks"):
        if check.get("state") == "Rejected":
            return f"Kueue deactivated its workload: {check.get('name')}: {_message(check)}"
    return ""


def _is_active(workload: Body) -> bool:
    return part(workload, "spec").get("active") is not False


def _waits_for(workload: Body) -> str:
    checks = parts(part(workload, "status"), "admissionChecks")
    told = [each for each in checks if each.get("state") in ("Pending", "Retry")]
    told += [each for each in _conditions(workload, "False") if each.get("type") == "QuotaReserved"]
    return next((_message(each) for each in told if each.get("message")), "")


def _conditions(workload: Body, status: str = "True") -> Iterator[Body]:
    for condition in parts(part(workload, "status"), "conditions"):
        if condition.get("status") == status:
            yield condition


def _message(told: Body) -> str:
    text = " ".join(str(told.get("message") or told.get("reason") or "no reason given").split())
    return text[:_LONGEST]
