"""Read what Kueue says of an object that it queues, from the object's Workloads. Pure.

Kueue deactivates a Workload for good when its capacity is taken back, its requests for nodes or
its requeuing reach their limit, or its time is over; the object then stays suspended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from admin_server.provisioning.cluster import ObjectKind
from admin_server.provisioning.manifest import Body, labels_of, part, parts

WORKLOADS = ObjectKind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
OWNER_UID = "kueue.x-k8s.io/job-uid"  # label of a Workload
QUEUE_NAME = "kueue.x-k8s.io/queue-name"  # label of an object that Kueue queues
_BY_KUEUE = "DeactivatedDueTo"  # how the reason of an eviction begins, unless a person did it
_LONGEST = 200  # characters of a message from Kueue


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


def by_owner(workloads: Sequence[Body]) -> dict[str, list[Body]]:
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
