"""Containers that the controller of PathwaysJobs makes, with their flags and variables. Pure."""

from __future__ import annotations

import copy
from typing import Any

from k8s.render.fields import is_set, number, parts, text
from k8s.render.pathways.component import PROXY, RESOURCE_MANAGER, SIDECAR, WORKER
from k8s.render.pathways.machines import PathwaysSlice

Object = dict[str, Any]
PROXY_PORT, MANAGER_PORT, WORKER_PORT, SIDECAR_PORT = 29000, 29001, 29005, 50051
SHARED_TMP = "shared-tmp"
_LABELS = "metadata.labels['jobset.sigs.k8s.io/{}']"
_ANNOTATIONS = "metadata.annotations['jobset.sigs.k8s.io/{}']"
_GOOGLES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/"
_MANAGER = f"--resource_manager_address=$(PATHWAYS_HEAD):{MANAGER_PORT}"
_MOUNTS = [{"name": SHARED_TMP, "mountPath": "/tmp"}]


def slice_of_workers(job: Object) -> PathwaysSlice:
    workers = parts(job, "spec", "workers")[0]
    return PathwaysSlice(text(workers, "type"), text(workers, "topology"))


def resource_manager(job: Object) -> Object:
    workers = parts(job, "spec", "workers")[0]
    flags = [
        f"--server_port={MANAGER_PORT}",
        _scratch(job),
        "--node_type=resource_manager",
        f"--instance_count={number(workers, 'numSlices')}",
        f"--instance_type={slice_of_workers(job).instance_type}",
    ]
    env = [
        _field("REPLICATED_JOB_NAME", _ANNOTATIONS, "replicatedjob-name"),
        _field("JOBSET_NAME", _ANNOTATIONS, "jobset-name"),
        _field("HOST_ADDRESS", _LABELS, "coordinator"),
        {"name": "TPU_SKIP_MDS_QUERY", "value": "true"},
    ]
    ports, limits = (MANAGER_PORT, 29002), {"cpu": "8", "memory": "32G"}
    return _program("pathways-rm", job, RESOURCE_MANAGER, flags, env, ports, limits)


def proxy(job: Object) -> Object:
    flags = [f"--server_port={PROXY_PORT}", _MANAGER, _scratch(job)]
    env = [_field("PATHWAYS_HEAD", _LABELS, "coordinator")]
    limits = {"cpu": "16", "memory": "100G"}
    made = _program("pathways-proxy", job, PROXY, flags, env, (PROXY_PORT,), limits)
    if elastic := number(job, "spec", "controller", "elasticSlices"):
        made["args"].append(f"--num_elastic_slices={elastic}")  # even after custom flags
    return made


def worker(job: Object) -> Object:
    flags = [f"--server_port={WORKER_PORT}", _MANAGER, _scratch(job)]
    env = [
        {"name": "TPU_MIN_LOG_LEVEL", "value": "0"},
        {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "0"},
        {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
        {"name": "MEGASCALE_GRPC_ENABLE_XOR_TRACER", "value": "false"},
        _field("MEGASCALE_NUM_SLICES", _LABELS, "replicatedjob-replicas"),
        _field("JOBSET_NAME", _ANNOTATIONS, "jobset-name"),
        _field("REPLICATED_JOB_NAME", _ANNOTATIONS, "replicatedjob-name"),
        _field("MEGASCALE_SLICE_ID", _LABELS, "job-index"),
        _field("PATHWAYS_HEAD", _LABELS, "coordinator"),
        _field("MEGASCALE_COORDINATOR_ADDRESS", _LABELS, "coordinator"),
    ]
    limits = {"google.com/tpu": str(slice_of_workers(job).chips_per_host)}
    ports = (WORKER_PORT, 29006, 8471, 8080)
    made = _program("pathways-worker", job, WORKER, flags, env, ports, limits)
    return made | {"volumeMounts": copy.deepcopy(_MOUNTS)}


def sidecar(job: Object) -> Object | None:
    """Return the colocated Python sidecar of each worker; None if the job names no image of one."""
    image = text(_component(job, SIDECAR), "image")
    if not image:
        return None
    return {
        "name": "colocated-python-sidecar",
        "image": image,
        "imagePullPolicy": "Always",
        "restartPolicy": "Always",
        # The quotes are part of the value.
        "env": [{"name": "GRPC_SERVER_ADDRESS", "value": f"'0.0.0.0:{SIDECAR_PORT}'"}],
        "ports": [{"containerPort": SIDECAR_PORT}],
        "volumeMounts": copy.deepcopy(_MOUNTS),
    }


def variables_of_main() -> list[Object]:
    """Return what is put behind the variables of the main container."""
    return [
        _field("PATHWAYS_HEAD", _LABELS, "coordinator"),
        {"name": "JAX_PLATFORMS", "value": "proxy"},
        {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
        {"name": "JAX_BACKEND_TARGET", "value": f"grpc://$(PATHWAYS_HEAD):{PROXY_PORT}"},
    ]


def _program(
    name: str,
    job: Object,
    kind: str,
    flags: list[str],
    env: list[Object],
    ports: tuple[int, ...],
    limits: dict[str, str],
) -> Object:
    custom = _component(job, kind)
    if is_set(job, "spec", "controller", "enableMetricsCollection"):
        flags = [*flags, "--enable_metrics_collection=true"]
    return {
        "name": name,
        "image": text(custom, "image") or _googles(job, kind),
        "imagePullPolicy": "Always",
        "args": [*flags, *custom.get("customFlags", ())],
        "env": [*env, *copy.deepcopy(custom.get("customEnv", []))],
        "ports": [{"containerPort": port} for port in ports],
        "resources": {"limits": limits},
    }


def _component(job: Object, kind: str) -> Object:
    found = parts(job, "spec", "customComponents")
    none: Object = {}
    return next((each for each in found if each["componentType"] == kind), none)


def _googles(job: Object, kind: str) -> str:
    name = "proxy_server" if kind == PROXY else "server"
    return f"{_GOOGLES}{name}:{text(job, 'spec', 'pathwaysVersion') or 'latest'}"


def _scratch(job: Object) -> str:
    return f"--gcs_scratch_location={text(job, 'spec', 'pathwaysDir')}"


def _field(name: str, place: str, key: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": place.format(key)}}}
