"""Checks the admin server's own status, read through the API server. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.doctor.finding import OK, PROBLEM, WARNING, Finding
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from k8s.render.fields import Object, number, part, text

_ABOUT = "admin server"


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
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
            _ABOUT,
            f"no admin server leads ({text(told, 'leadership') or 'no reason given'}): can it "
            "write to the bucket?",
            f"{where} logs deployment/sax-admin-server --tail=50",
        )
        return
    yield Finding(OK, _ABOUT, f"cell {text(told, 'cell')} is led by {leader or 'this one'}")
    if trouble := text(told, "store_trouble"):
        yield Finding(
            PROBLEM,
            _ABOUT,
            f"cannot write its state: {trouble}",
            "gcloud storage buckets get-iam-policy gs://BUCKET",
        )
    if told.get("leading"):
        yield _totals(part(told, "totals"), where)


def _out_of_reach(trouble: str, where: str) -> Finding:
    return Finding(
        WARNING,
        _ABOUT,
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
        return Finding(OK, _ABOUT, told)
    return Finding(
        WARNING,
        _ABOUT,
        told,
        f"{where} port-forward service/sax-admin-server 10000, then sax ls and sax status",
    )
