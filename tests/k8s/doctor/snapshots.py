"""Clusters of tests as values: one in which all is well, and the parts of which others are made."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

from k8s.doctor.snapshot import LOOKS, Snapshot
from k8s.render.image import ImageSource
from tests.k8s.render.orders import rendered

Object = dict[str, Any]
REGISTRY = "us-docker.pkg.dev/me/sax"
SERVED = {
    "jobsets.jobset.x-k8s.io": "v1alpha2",
    "leaderworkersets.leaderworkerset.x-k8s.io": "v1",
}


def definition(name: str, *versions: str) -> Object:
    served = [{"name": version, "served": True} for version in versions]
    return {"metadata": {"name": name}, "spec": {"versions": served}}


def controller(name: str, namespace: str, ready: int = 1, image: str = "") -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {"containers": [{"name": "manager", "image": image}]}}},
        "status": {"readyReplicas": ready},
    }


def webhooks(name: str, ca: str = "x") -> Object:
    hook = {"name": f"m{name}.kb.io", "clientConfig": {"caBundle": ca}}
    return {"metadata": {"name": f"{name}-mutating-webhook-configuration"}, "webhooks": [hook]}


def node(name: str, pool: str = "p0", **changes: Any) -> Object:
    """A host of v5e:4x8, ready."""
    labels = {
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
        "iam.gke.io/gke-metadata-server-enabled": "true",
    }
    return {
        "metadata": {"name": name, "labels": labels | changes.get("labels", {})},
        "spec": {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]}
        | changes.get("spec", {}),
        "status": {
            "conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
            "allocatable": {"google.com/tpu": changes.get("chips", "4")},
        },
    }


def pool(name: str, hosts: int = 8) -> list[Object]:
    return [node(f"{name}-{index}", name) for index in range(hosts)]


def pod(name: str, app: str = "sax-model-server", **status: Any) -> Object:
    """One of ours; ready unless its status says otherwise."""
    usual = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"app": app, "app.kubernetes.io/part-of": "sax"}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": "p0-0"},
        "status": usual | status,
    }


def container(**state: Any) -> Object:
    """The status of a container."""
    return {"name": "sax-model-server", "image": f"{REGISTRY}/sax-model-tpu:0.1.0", **state}


def waiting(reason: str, message: str = "", **more: Any) -> list[Object]:
    return [container(state={"waiting": {"reason": reason, "message": message}}, **more)]


def exited(code: int, **more: Any) -> Object:
    return {"terminated": {"exitCode": code, **more}}


def event(reason: str, message: str, name: str = "w", **more: Any) -> Object:
    involved = {"kind": more.pop("kind", "Pod"), "name": name}
    return {"reason": reason, "message": message, "involvedObject": involved, **more}


def applied() -> dict[str, list[Object]]:
    """What render makes, as a cluster lists it once all of it runs."""
    return deepcopy(_applied())


@cache
def _applied() -> dict[str, list[Object]]:
    made = rendered(
        images=ImageSource(REGISTRY), service_account_email="sax@my-project.iam.gserviceaccount.com"
    )
    by_kind: dict[str, list[Object]] = {}
    for each in made.objects:
        by_kind.setdefault(each["kind"].lower() + "s", []).append(each)
    for each in by_kind["deployments"]:
        each["status"] = {"readyReplicas": each["spec"]["replicas"]}
    for each in by_kind["jobsets"]:
        each["status"] = {"replicatedJobsStatus": [{"name": "sax-model-server", "ready": 1}]}
    for each in by_kind["services"]:
        if each["spec"]["type"] == "LoadBalancer":
            each["status"] = {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}
    return by_kind


def well(**changes: Any) -> Snapshot:
    """All is well: two replicas of the tutorial's model on two slices. Lists may be changed."""
    lists: dict[str, list[Object]] = {look.name: [] for look in LOOKS}
    lists |= {name: things for name, things in applied().items() if name in lists}
    lists["customresourcedefinitions"] = [definition(*each) for each in SERVED.items()]
    lists["mutatingwebhookconfigurations"] = [webhooks("jobset")]
    lists["controllers"] = [controller("jobset-controller-manager", "jobset-system")]
    lists["nodes"] = [*pool("p0"), *pool("p1")]
    lists["pods"] = [
        pod("sax-admin-server-1", "sax-admin-server"),
        pod("sax-http-1", "sax-http"),
        *(pod(f"sax-model-server-set-0-sax-model-server-0-{i}-x") for i in range(8)),
    ]
    fields = {name: changes.pop(name) for name in ("admin", "admin_trouble") if name in changes}
    snapshot = Snapshot(
        namespace="default", version="v1.33.1-gke.100", seen=lists | changes, admin=LEADING
    )
    return replace(snapshot, **fields)


def with_kueue() -> dict[str, list[Object]]:
    """Beside JobSets, Kueue: definitions, controller and webhooks."""
    made = {**SERVED, "clusterqueues.kueue.x-k8s.io": "v1beta2"}
    made |= dict.fromkeys(("localqueues.kueue.x-k8s.io", "workloads.kueue.x-k8s.io"), "v1beta2")
    names = {"jobset-controller-manager": "jobset-system"}
    names |= {"kueue-controller-manager": "kueue-system"}
    return {
        "customresourcedefinitions": [definition(*each) for each in made.items()],
        "mutatingwebhookconfigurations": [webhooks("jobset"), webhooks("kueue")],
        "controllers": [controller(*each) for each in names.items()],
    }


LEADING = {
    "cell": "/sax/test",
    "leading": True,
    "leader": "10.0.0.1:10000",
    "store_trouble": "",
    "totals": {"models": 1, "wanted_replicas": 2, "ready_replicas": 2, "servers": 2,
               "servers_in_trouble": 0},
}  # fmt: skip
