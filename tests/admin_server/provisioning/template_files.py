"""Small templates of model servers, as operators write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from admin_server.provisioning.templates import Template, parse_template


def jobset(
    name: str = "v5e-4x8",
    *,
    hosts: int = 8,
    chips: int = 4,
    args: list[str] | None = None,
    annotations: dict[str, str] | None = None,
    job: str = "sax-model-server",
) -> dict[str, Any]:
    """A JobSet of one slice."""
    pod = {"spec": {"containers": [container(chips, args)], "restartPolicy": "Never"}}
    inner = {"parallelism": hosts, "completions": hosts, "template": pod}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"replicatedJobs": [{"name": job, "replicas": 1, "template": {"spec": inner}}]},
    }


def leader_worker_set(
    name: str = "v6e-2x4", *, hosts: int = 2, chips: int = 4, args: list[str] | None = None
) -> dict[str, Any]:
    """A LeaderWorkerSet of one group."""
    worker = {"spec": {"containers": [container(chips, args)]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"leaderWorkerTemplate": {"size": hosts, "workerTemplate": worker}},
    }


def container(chips: int, args: list[str] | None) -> dict[str, Any]:
    """The model server's."""
    limits = {"limits": {"google.com/tpu": str(chips)}} if chips else {}
    return {
        "name": "sax-model-server",
        "image": "sax-model-tpu:0.1.0",
        "args": args or ["--port=10001"],
        "resources": limits,
    }


def template(body: dict[str, Any]) -> Template:
    """As it is read from its file."""
    return parse_template(yaml.safe_dump(body), f"{body['metadata']['name']}.yaml")


def write(folder: Path, *bodies: dict[str, Any]) -> Path:
    """A folder of them."""
    folder.mkdir(exist_ok=True)
    for body in bodies:
        (folder / f"{body['metadata']['name']}.yaml").write_text(yaml.safe_dump(body))
    return folder
