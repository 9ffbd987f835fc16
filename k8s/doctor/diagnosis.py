"""Diagnoses a cluster from a snapshot of it. Pure.

Each area has its own file; this one runs them in the order in which one would fix problems.
"""

from __future__ import annotations

from k8s.doctor import cloud, controllers, nodes, queues, servers, workloads
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from sax.finding import WARNING, Finding

_OF_THE_CLUSTER = (
    servers.api_findings,
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
    servers.admin_findings,
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
