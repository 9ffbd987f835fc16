"""Diagnoses a cluster from a snapshot of it. Pure.

Each area has its own file; this one runs them in the order in which one would fix problems.
"""

from __future__ import annotations

from k8s.doctor import (
    admin_servers,
    api_server,
    controllers,
    identity,
    images,
    nodes,
    pods,
    queues,
    quota,
    sets,
)
from k8s.doctor.finding import WARNING, Finding
from k8s.doctor.snapshot import ClusterNeeds, Snapshot

_OF_THE_CLUSTER = (
    api_server.findings,
    controllers.findings,
    nodes.findings,
    quota.findings,
)
_OF_A_CELL = (
    identity.findings,
    images.findings,
    sets.findings,
    queues.findings,
    pods.findings,
    admin_servers.findings,
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
