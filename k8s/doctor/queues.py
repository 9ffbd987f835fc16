"""Checks what Kueue does with the sets that it queues: waits, admits, or has given up. Pure.

Kueue deactivates the Workload of a set for good when its capacity is taken back (flex-start ends
after seven days at most) or its retries are used up. The set then stays suspended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k8s.doctor.snapshot import ClusterNeeds, Snapshot, is_ours
from k8s.render.fields import Object, condition, holds, label, name_of, part, parts, text
from sax.finding import OK, PROBLEM, WARNING, Finding

_ABOUT = "queue"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
_OWNER_UID = "kueue.x-k8s.io/job-uid"
_BY_KUEUE = "DeactivatedDueTo"  # how the reason of an eviction begins, unless a person did it


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    for kind in ("jobset", "leaderworkerset"):
        for thing in snapshot.of(f"{kind}s"):
            if is_ours(thing) and not (holds(thing, "Failed") or holds(thing, "Completed")):
                yield from _of_thing(kind, thing, snapshot)


def _of_thing(kind: str, thing: Object, snapshot: Snapshot) -> Iterator[Finding]:
    if workloads := workloads_of(thing, snapshot):
        yield _of_set(kind, thing, workloads, snapshot.namespace)
    elif label(thing, QUEUE_NAME) and snapshot.knows("workloads"):
        yield _overlooked(kind, thing)


def workloads_of(thing: Object, snapshot: Snapshot) -> list[Object]:
    uid = text(thing, "metadata", "uid")
    every = snapshot.of("workloads")
    return [each for each in every if uid and label(each, _OWNER_UID) == uid]


def _of_set(kind: str, thing: Object, workloads: Sequence[Object], where: str) -> Finding:
    """One workload that may still run is enough: Kueue replaces those of elastic sets."""
    name, last = name_of(thing), workloads[-1]
    if all(map(_end, workloads)):
        return _given_up(kind, thing, _end(last), where)
    active = [each for each in workloads if not _end(each) and _is_active(each)]
    if not active:
        return _held(name, next(each for each in workloads if not _end(each)), where)
    if holds(active[-1], "Admitted") and holds(active[-1], "Evicted"):
        return _stuck(kind, name, where)
    if holds(active[-1], "Admitted"):
        return Finding(OK, _ABOUT, f"{name} was admitted by Kueue")
    told = f"{name} waits in the queue {text(active[-1], 'spec', 'queueName')}"
    why = _waits_for(active[-1])
    describe = f"kubectl -n {where} describe workload {name_of(active[-1])}"
    return Finding(WARNING, _ABOUT, f"{told}: {why}" if why else told, describe)


def _given_up(kind: str, thing: Object, why: str, where: str) -> Finding:
    name = name_of(thing)
    if label(thing, "app.kubernetes.io/managed-by") == "sax-admin-server":
        return Finding(
            WARNING,
            _ABOUT,
            f"{why}; the admin server makes another object in place of {name}, if it may list "
            "workloads",
            f"kubectl -n {where} auth can-i list workloads.kueue.x-k8s.io "
            f"--as=system:serviceaccount:{where}:sax-admin",
        )
    return Finding(
        PROBLEM,
        _ABOUT,
        f"{why}; {name} stays suspended for ever",
        f"kubectl -n {where} delete {kind} {name}   and apply its manifest again: the new one asks "
        "for new capacity",
    )


def _stuck(kind: str, name: str, where: str) -> Finding:
    return Finding(
        WARNING,
        _ABOUT,
        f"Kueue evicted {name} and still holds its quota: where that lasts, it neither runs nor "
        "waits (kubernetes-sigs/kueue#14811, after a restart under waitForPodsReady)",
        f"kubectl -n {where} delete {kind} {name}   and apply its manifest again",
    )


def _held(name: str, workload: Object, where: str) -> Finding:
    return Finding(
        WARNING,
        _ABOUT,
        f"somebody deactivated the workload of {name}: it stays suspended until it is active",
        f"kubectl -n {where} patch workload {name_of(workload)} --type=merge "
        '-p \'{"spec":{"active":true}}\'',
    )


def _overlooked(kind: str, thing: Object) -> Finding:
    name = name_of(thing)
    return Finding(
        WARNING,
        _ABOUT,
        f"{name} names the queue {label(thing, QUEUE_NAME)}, but Kueue made no workload of it: "
        f"its integration with {kind}s may be off",
        "kubectl -n kueue-system logs deployment/kueue-controller-manager --tail=50",
    )


def _end(workload: Object) -> str:
    """Why it is finished, or why Kueue itself deactivated it; "" for neither."""
    if holds(workload, "Finished"):
        return f"Kueue takes a workload for finished: {_message(condition(workload, 'Finished'))}"
    if _is_active(workload):
        return ""
    evicted = condition(workload, "Evicted")
    refused = [each for each in _checks(workload) if text(each, "state") == "Rejected"]
    if text(evicted, "reason").startswith(_BY_KUEUE):
        return f"Kueue deactivated a workload: {_message(evicted)}"
    if holds(workload, "DeactivationTarget") or refused:
        why = refused[0] if refused else condition(workload, "DeactivationTarget")
        return f"Kueue deactivated a workload: {_message(why)}"
    return ""


def _is_active(workload: Object) -> bool:
    return part(workload, "spec").get("active") is not False


def _waits_for(workload: Object) -> str:
    told = [each for each in _checks(workload) if text(each, "state") in ("Pending", "Retry")]
    told.append(condition(workload, "QuotaReserved"))
    return next((text(each, "message") for each in told if text(each, "message")), "")


def _checks(workload: Object) -> list[Object]:
    return parts(workload, "status", "admissionChecks")


def _message(told: Object) -> str:
    return text(told, "message") or text(told, "reason") or "no reason given"
