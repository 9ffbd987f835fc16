"""Checks the API server: its version, and the lists that it denied. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k8s.doctor.finding import OK, WARNING, Finding
from k8s.doctor.snapshot import LOOKS, ClusterNeeds, Look, Snapshot

_ABOUT = "API server"
_LEAST = (1, 30)  # for the sleep before a gateway stops


def findings(snapshot: Snapshot, wanted: ClusterNeeds) -> Iterator[Finding]:
    found = re.match(r"v?(\d+)\.(\d+)", snapshot.version)
    least = ".".join(map(str, _LEAST))
    if found and (int(found[1]), int(found[2])) < _LEAST:
        yield Finding(
            WARNING,
            _ABOUT,
            f"Kubernetes {snapshot.version} is too old: the manifests need {least}",
            "gcloud container clusters upgrade CLUSTER --location=LOCATION --master",
        )
    else:
        yield Finding(
            OK, _ABOUT, f"reachable, Kubernetes {snapshot.version or '(unknown version)'}"
        )
    for look in LOOKS:
        if snapshot.lacks(look):
            continue
        if look.name in snapshot.forbidden:
            yield _forbidden(look, snapshot.namespace)
        elif look.name in snapshot.failed:
            yield Finding(
                WARNING,
                _ABOUT,
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
