"""Diagnoses a cluster from a snapshot of it. Pure.

Each area has its own file, but for the API server (version, lists that it denied) and the admin
server's status, which are here; `diagnose` runs them in the order in which one would fix problems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from k8s.doctor import cloud, controllers, nodes, queues, workloads
from k8s.doctor.snapshot import LOOKS, ClusterNeeds, Look, Snapshot
from k8s.render.fields import Object, number, part, text
from sax.finding import OK, PROBLEM, WARNING, Finding

_API = "API server"
_LEAST = (1, 30)  # for the sleep before a gateway stops
_ADMIN = "admin server"


def api_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    found = re.match(r"v?(\d+)\.(\d+)", snapshot.version)
    least = ".".join(map(str, _LEAST))
    if found and (int(found[1]), int(found[2])) < _LEAST:
        yield Finding(
            WARNING,
            _API,
            f"Kubernetes {snapshot.version} is too old: the manifests need {least}",
            "gcloud container clusters upgrade CLUSTER --location=LOCATION --master",
        )
    else:
        yield Finding(OK, _API, f"reachable, Kubernetes {snapshot.version or '(unknown version)'}")
    for look in LOOKS:
        if snapshot.lacks(look):
            continue
        if look.name in snapshot.forbidden:
            yield _forbidden(look, snapshot.namespace)
        elif look.name in snapshot.failed:
            yield Finding(
                WARNING,
                _API,
                f"{look.resource} could not be listed: {snapshot.failed[look.name]}",
                "run the doctor again",
            )


def _forbidden(look: Look, namespace: str) -> Finding:
    where = f"-n {namespace}" if look.is_namespaced else "--all-namespaces"
    kind = "Role" if look.is_namespaced else "ClusterRole"
    return Finding(
        WARNING,
        "rights",
        f"you may not list {look.resource}"
        + (f" in namespace {namespace}" if look.is_namespaced else " in the cluster")
        + ", so they were not checked",
        f"kubectl auth can-i list {look.resource} {where} must say yes: ask for a {kind} with "
        f"verb list on {look.resource}",
    )


def admin_findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    where = f"kubectl -n {snapshot.namespace}"
    if snapshot.admin is None:
        if snapshot.admin_trouble:
            yield _out_of_reach(snapshot.admin_trouble, where)
        return
    told: Object = dict(snapshot.admin)
    leader = text(told, "leader")
    if not told.get("leading") and not leader:
        yield Finding(
            PROBLEM,
            _ADMIN,
            f"no admin server leads ({text(told, 'leadership') or 'no reason given'}): can it "
            "write to the bucket?",
            f"{where} logs deployment/sax-admin-server --tail=50",
        )
        return
    yield Finding(OK, _ADMIN, f"cell {text(told, 'cell')} is led by {leader or 'this one'}")
    if trouble := text(told, "store_trouble"):
        yield Finding(
            PROBLEM,
            _ADMIN,
            f"cannot write its state: {trouble}",
            "gcloud storage buckets get-iam-policy gs://BUCKET",
        )
    if told.get("leading"):
        yield _totals(part(told, "totals"), where)


def _out_of_reach(trouble: str, where: str) -> Finding:
    return Finding(
        WARNING,
        _ADMIN,
        f"its status cannot be read through the API server: {trouble}",
        f"{where} port-forward deployment/sax-admin-server 10002, then "
        "curl localhost:10002/status.json",
    )


def _totals(totals: Object, where: str) -> Finding:
    models, ready = number(totals, "models"), number(totals, "ready_replicas")
    wanted, servers = number(totals, "wanted_replicas"), number(totals, "servers")
    told = (
        f"{models} models published; {ready} of {wanted} wanted replicas ready; {servers} "
        f"model servers, {number(totals, 'servers_in_trouble')} of them in trouble"
    )
    if ready >= wanted and not number(totals, "servers_in_trouble"):
        return Finding(OK, _ADMIN, told)
    return Finding(
        WARNING,
        _ADMIN,
        told,
        f"{where} port-forward service/sax-admin-server 10000, then sax ls and sax status",
    )


_OF_THE_CLUSTER = (
    api_findings,
    controllers.findings,
    nodes.findings,
    cloud.capacity_findings,
)
_OF_A_CELL = (
    cloud.access_findings,
    workloads.image_findings,
    workloads.set_findings,
    queues.findings,
    workloads.pod_findings,
    admin_findings,
)


def diagnose(snapshot: Snapshot, wanted: ClusterNeeds) -> list[Finding]:
    """Return all findings: first the cluster's, then the cell's if one is deployed."""
    found = [finding for look in _OF_THE_CLUSTER for finding in look(snapshot, wanted)]
    if snapshot.is_deployed:
        found += [finding for look in _OF_A_CELL for finding in look(snapshot, wanted)]
    elif snapshot.knows("pods"):
        found.append(
            Finding(
                WARNING,
                "cell",
                f"sax is not deployed in namespace {snapshot.namespace} yet",
                "sax k8s render MODEL --topology SLICE --bucket gs://BUCKET | kubectl apply "
                "--server-side -f -",
            )
        )
    return found
