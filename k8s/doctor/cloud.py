"""Checks what the cell needs of its cloud: access to the bucket, and capacity. Pure.

Access: ServiceAccount, workload identity of nodes, bucket name. Capacity: the namespace's quota,
and events about quota or missing machines.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from k8s.doctor.nodes import wanted_slices
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from k8s.render.bucket import ACCOUNTS
from k8s.render.fields import Object, label, name_of, number, parse_quantity, part, parts, text
from sax.finding import OK, PROBLEM, WARNING, Finding, some
from sax.slices import NODE_POOL_LABEL, TPU

_ABOUT = "identity"
_CONFIG = "sax-cell"
_ANNOTATION = "iam.gke.io/gcp-service-account"
_METADATA = "iam.gke.io/gke-metadata-server-enabled"
_PLACEHOLDERS = ("BUCKET_NAME", "PROJECT_ID", "SAX_GSA", "PROJECT_NUMBER")
_QUOTA = "quota"
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


def access_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    if snapshot.knows("serviceaccounts"):
        yield from (_account(name, snapshot) for name in ACCOUNTS)
    bucket: Object = {}
    if snapshot.knows("configmaps"):
        found = [each for each in snapshot.of("configmaps") if name_of(each) == _CONFIG]
        bucket = found[0] if found else {}
        yield _bucket(bucket, snapshot.namespace)
    if snapshot.is_on_gke and _is_googles(bucket):
        yield from _nodes(snapshot)


def _account(account: str, snapshot: Snapshot) -> Finding:
    where = snapshot.namespace
    found = [each for each in snapshot.of("serviceaccounts") if name_of(each) == account]
    if not found:
        return Finding(
            PROBLEM,
            _ABOUT,
            f"there is no ServiceAccount {account} in namespace {where}: its pods cannot start",
            "sax k8s render MODEL ... --only control | kubectl apply --server-side -f -",
        )
    email = text(found[0], "metadata", "annotations", _ANNOTATION)
    if placeholder := _placeholder(email):
        return Finding(
            PROBLEM,
            _ABOUT,
            f"{account} acts as {email}: {placeholder} was never replaced",
            f"kubectl -n {where} annotate --overwrite serviceaccount {account} "
            f"{_ANNOTATION}=NAME@PROJECT.iam.gserviceaccount.com",
        )
    if email:
        return Finding(OK, _ABOUT, f"{account} acts as {email}")
    return Finding(
        OK,
        _ABOUT,
        f"{account} acts as itself: its folders of the bucket must be granted to "
        f"ns/{where}/sa/{account} of the cluster's workload identity pool",
    )


def _bucket(config: Object, namespace: str) -> Finding:
    bucket = text(config, "data", "GSBUCKET")
    if not config:
        return Finding(
            PROBLEM,
            "bucket",
            f"there is no ConfigMap {_CONFIG}: no sax pod can start",
            "sax k8s render MODEL ... --only control | kubectl apply --server-side -f -",
        )
    if not bucket or _placeholder(bucket):
        return Finding(
            PROBLEM,
            "bucket",
            f"GSBUCKET in ConfigMap {_CONFIG} is {bucket!r}, which is not a bucket",
            f"kubectl -n {namespace} patch configmap {_CONFIG} --type=merge -p "
            '\'{"data":{"GSBUCKET":"MY-BUCKET"}}\' && '
            f"kubectl -n {namespace} rollout restart deployment",
        )
    return Finding(OK, "bucket", f"state is stored in {bucket}")


def _is_googles(config: Object) -> bool:
    bucket = text(config, "data", "GSBUCKET")
    return "://" not in bucket or bucket.startswith("gs://")


def _nodes(snapshot: Snapshot) -> Iterator[Finding]:
    without = [node for node in snapshot.of("nodes") if label(node, _METADATA) != "true"]
    pools = sorted({label(node, NODE_POOL_LABEL) or "(none)" for node in without})
    if not snapshot.of("nodes"):
        return
    if not pools:
        yield Finding(OK, _ABOUT, "every node has workload identity's metadata server")
        return
    all_of_them = len(without) == len(snapshot.of("nodes"))
    yield Finding(
        PROBLEM if all_of_them else WARNING,
        _ABOUT,
        f"node pools {some(pools)} have no workload identity: pods there cannot use the bucket",
        f"gcloud container node-pools update {pools[0]} --cluster=CLUSTER --location=LOCATION "
        "--workload-metadata=GKE_METADATA"
        + (
            "   (first: gcloud container clusters update CLUSTER --location=LOCATION "
            "--workload-pool=PROJECT_ID.svc.id.goog)"
            if all_of_them
            else ""
        ),
    )


def _placeholder(text: str) -> str:
    return next((word for word in _PLACEHOLDERS if word in text), "")


def capacity_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    for quota in snapshot.of("resourcequotas"):
        yield from _of_quota(quota, snapshot, wanted)
    if not snapshot.knows("events"):
        return
    told = _events(snapshot)
    for (reason, what), messages in sorted(told.items()):
        yield _of_events(reason, what, messages, snapshot)
    if not told:
        yield Finding(OK, _QUOTA, "no events about missing capacity")


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
            yield Finding(PROBLEM, _QUOTA, f"ResourceQuota {name} {told}", remedy)
        elif (parse_quantity(there) or 0) >= limit:
            told = f"is full: {resource} {there} of {most}"
            yield Finding(WARNING, _QUOTA, f"ResourceQuota {name} {told}", remedy)


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
        _QUOTA if what else "scheduling",
        f"{some(names)}: {reason}: {told}",
        _kind(message)[1].format(describe=describe) if what else describe,
    )
