"""What is well and what is not in a cluster, from a snapshot of it. Pure.

Each noun has its own file; this one puts them in the order in which one would mend things.
"""

from __future__ import annotations

from sax.kubernetes import (
    diagnosis_admin,
    diagnosis_api,
    diagnosis_controllers,
    diagnosis_identity,
    diagnosis_images,
    diagnosis_nodes,
    diagnosis_pods,
    diagnosis_quota,
    diagnosis_sets,
)
from sax.kubernetes.finding import WARNING, Finding
from sax.kubernetes.snapshot import Snapshot, Wanted

_OF_THE_CLUSTER = (
    diagnosis_api.findings,
    diagnosis_controllers.findings,
    diagnosis_nodes.findings,
    diagnosis_quota.findings,
)
_OF_A_CELL = (
    diagnosis_identity.findings,
    diagnosis_images.findings,
    diagnosis_sets.findings,
    diagnosis_pods.findings,
    diagnosis_admin.findings,
)


def diagnose(snapshot: Snapshot, wanted: Wanted) -> list[Finding]:
    """Everything there is to say."""
    found = [finding for look in _OF_THE_CLUSTER for finding in look(snapshot, wanted)]
    if snapshot.is_deployed:
        found += [finding for look in _OF_A_CELL for finding in look(snapshot, wanted)]
    elif snapshot.knows("pods"):
        found.append(
            Finding(
                WARNING,
                "cell",
                f"nothing of sax is in namespace {snapshot.namespace} yet",
                "sax k8s render MODEL --topology SLICE --bucket gs://BUCKET | kubectl apply "
                "--server-side -f -",
            )
        )
    return found
