"""An object of this cell in Kubernetes: which model it is for, and its state.

Read from the status of JobSets and LeaderWorkerSets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from admin_server.provisioning.cluster import JOBSET, ObjectKind
from admin_server.provisioning.manifest import Body, annotations_of, labels_of, part, parts
from admin_server.provisioning.object_names import (
    DEVICES,
    MODEL,
    TEMPLATE,
    TEMPLATE_HASH,
    cell_labels,
)
from admin_server.provisioning.templates import pods_of
from admin_server.provisioning.workloads import QUEUE_NAME, QueueState
from sax.errors import InvalidName
from sax.names import CellId, ModelId

_QUEUED = "is suspended: it is queued for machines"


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


def _conditions(body: Body) -> Iterator[Body]:
    """Conditions that are True."""
    for condition in parts(part(body, "status"), "conditions"):
        if condition.get("status") == "True":
            yield condition


def _moment(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _duration(seconds: float) -> str:
    """40 s, 12 min, 3 h."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
