"""Renders a cell's control plane: the packaged objects, filled in from an order. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from k8s.render.order import Order
from k8s.render.workload import pod_of
from sax.errors import Internal

Object = dict[str, Any]
_ADMIN_POLICY = "sax-admin-server"
_ACCOUNT = "iam.gke.io/gcp-service-account"


def control_plane_of(packaged: Iterable[Object], order: Order) -> list[Object]:
    """Return admin servers, gateways, their Services, and the objects all pods share.

    Raises Internal if the packaged manifests lack one of them.
    """
    made = [copy.deepcopy(each) for each in packaged]
    kinds = {each["kind"] for each in made}
    if missing := {"ConfigMap", "ServiceAccount", "Deployment"} - kinds:
        raise Internal(f"the packaged manifests have no {', '.join(sorted(missing))}")
    for each in made:
        if each["kind"] == "ConfigMap":
            each["data"] |= {"GSBUCKET": order.bucket.variable, "SAX_CELL": str(order.cell)}
        elif each["kind"] == "ServiceAccount":
            _identify(each, order.service_account_email)
        elif each["kind"] == "Deployment":
            order.images.apply(pod_of(each))
        elif each["kind"] == "NetworkPolicy" and order.is_pathways:
            _let_nodes_in(each)
    return made


def _let_nodes_in(policy: Object) -> None:
    """Let every address call the admin servers: heads are on the host's network.

    No policy can select a node's address (as in k8s/components/parts/nodes-may-call).
    """
    if policy["metadata"]["name"] == _ADMIN_POLICY:
        policy["spec"]["ingress"][0].pop("from", None)


def put_in(namespace: str, objects: Iterable[Object]) -> None:
    for each in objects:
        each["metadata"]["namespace"] = namespace
        for subject in each.get("subjects", ()):
            if subject["kind"] == "ServiceAccount":
                subject["namespace"] = namespace


def _identify(account: Object, email: str | None) -> None:
    """Let a ServiceAccount act as a Google service account; None: as itself."""
    if email is not None:
        account["metadata"].setdefault("annotations", {})[_ACCOUNT] = email
