"""Checks capacity: the namespace's quota, and events about quota or missing machines. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from k8s.doctor.finding import OK, PROBLEM, WARNING, Finding, some
from k8s.doctor.nodes import wanted_slices
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from k8s.render.fields import Object, name_of, number, part, parts, text
from k8s.render.quantity import parse_quantity
from sax.slices import TPU

_ABOUT = "quota"
_COMPUTE = (
    "gcloud compute regions describe REGION --flatten=quotas "
    '--format="csv[no-heading](quotas.metric,quotas.usage,quotas.limit)" | grep TPU   (more: '
    "IAM & Admin, Quotas)"
)
_OTHERS = (
    "wait, try another zone (--node-locations), or use machines that start once some are free: "
    "sax k8s render ... --flex-start"
)
_KINDS = (  # the first match classifies an event
    (re.compile(r"exceeded quota", re.I), "the namespace's quota is full", "{describe}"),
    (re.compile(r"quota", re.I), "the quota of the project is used up", _COMPUTE),
    (
        re.compile(r"out.of.resources|stockout|POOL_EXHAUSTED|not enough resources", re.I),
        "the zone has no such machines now",
        _OTHERS,
    ),
    (re.compile(r""), "", "{describe}"),
)
_LISTED = {  # by kind of an event's object: where it is listed while it is there
    "Pod": "pods",
    "Job": "jobs",
    "JobSet": "jobsets",
    "LeaderWorkerSet": "leaderworkersets",
    "PathwaysJob": "pathwaysjobs",
    "StatefulSet": "statefulsets",
    "Deployment": "deployments",
    "PersistentVolumeClaim": "persistentvolumeclaims",
}
_REASONS = {"FailedScheduling", "FailedCreate", "FailedScaleUp", "NotTriggerScaleUp"}


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    for quota in snapshot.of("resourcequotas"):
        yield from _of_quota(quota, snapshot, wanted)
    if not snapshot.knows("events"):
        return
    told = _events(snapshot)
    for (reason, what), messages in sorted(told.items()):
        yield _of_events(reason, what, messages, snapshot)
    if not told:
        yield Finding(OK, _ABOUT, "no events about missing capacity")


def _of_quota(quota: Object, snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    hard, used = part(quota, "status", "hard"), part(quota, "status", "used")
    name = name_of(quota)
    remedy = f"kubectl -n {snapshot.namespace} edit resourcequota {name}"
    chips = sum(want.there.chips * n for want, n in wanted_slices(snapshot, wanted).items())
    for resource in hard:
        most, there = text(hard, resource), text(used, resource)
        limit = parse_quantity(most)
        if limit is None:
            continue
        if resource == f"requests.{TPU}" and limit < chips:
            told = f"allows {most} {TPU}, but {chips} chips are wanted"
            yield Finding(PROBLEM, _ABOUT, f"ResourceQuota {name} {told}", remedy)
        elif (parse_quantity(there) or 0) >= limit:
            told = f"is full: {resource} {there} of {most}"
            yield Finding(WARNING, _ABOUT, f"ResourceQuota {name} {told}", remedy)


def _events(snapshot: Snapshot) -> dict[tuple[str, str], list[Object]]:
    """Return the events that still matter, by reason and kind."""
    placed = {name_of(pod) for pod in snapshot.of("pods") if text(pod, "spec", "nodeName")}
    owners = {
        text(owner, "name")
        for pod in snapshot.of("pods")
        for owner in parts(pod, "metadata", "ownerReferences")
    }
    there = _uids(snapshot)
    found: dict[tuple[str, str], list[Object]] = defaultdict(list)
    for event in snapshot.of("events"):
        reason, about = text(event, "reason"), part(event, "involvedObject")
        is_past = text(about, "name") in placed | owners or _is_gone(about, there)
        if reason in _REASONS and not is_past:
            found[reason, _kind(text(event, "message"))[0]].append(event)
    return found


def _uids(snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """Return the uids of objects by kind and name, of all kinds that were listed."""
    return {
        kind: {name_of(each): text(each, "metadata", "uid") for each in snapshot.of(look)}
        for kind, look in _LISTED.items()
        if snapshot.knows(look)
    }


def _is_gone(about: Object, there: Mapping[str, Mapping[str, str]]) -> bool:
    """Return True if there is no such object, or another one of its name: sets make Jobs anew."""
    known = there.get(text(about, "kind"))
    if known is None:
        return False
    uid, now = text(about, "uid"), known.get(text(about, "name"))
    return now is None or bool(uid and now and uid != now)


def _kind(message: str) -> tuple[str, str]:
    return next((what, remedy) for pattern, what, remedy in _KINDS if pattern.search(message))


def _of_events(reason: str, what: str, events: list[Object], snapshot: Snapshot) -> Finding:
    last = max(events, key=lambda event: text(event, "lastTimestamp"))
    message = text(last, "message")
    names = sorted({text(event, "involvedObject", "name") for event in events})
    kind = text(last, "involvedObject", "kind").lower() or "pod"
    describe = f"kubectl -n {snapshot.namespace} describe {kind} {names[0]}"
    times = sum(max(number(event, "count"), 1) for event in events)
    told = f"{what}: {message}" if what else message
    if times > 1:
        told += f" ({times} times)"
    return Finding(
        # The autoscaler's refusal alone may concern pools that were never candidates.
        WARNING if reason == "NotTriggerScaleUp" and not what else PROBLEM,
        _ABOUT if what else "scheduling",
        f"{some(names)}: {reason}: {told}",
        _kind(message)[1].format(describe=describe) if what else describe,
    )
