"""The programs of a Pathways cluster as kubelets start them, for tests of who parses their flags.

`programs` renders a PathwaysJob, expands it as its controller does and resolves variables as
kubelets do. The lists are what the controller gives each program of a plain job, written by hand
from its source; JOB_COMPLETION_INDEX is what an indexed Job adds.
"""

from __future__ import annotations

from typing import Any

from k8s.render.pathways.options import PathwaysOptions
from tests.k8s.kubelet import Container
from tests.k8s.pods import pods_of
from tests.k8s.render.orders import rendered

HEAD = "sax-0-pathways-head-0-0.sax-0"
RESOURCE_MANAGER = (
    "--server_port=29001",
    "--gcs_scratch_location=gs://my-sax/pathways",
    "--node_type=resource_manager",
    "--instance_count=2",
    "--instance_type=tpuv5e:4x8",
)
PROXY = (
    "--server_port=29000",
    f"--resource_manager_address={HEAD}:29001",
    "--gcs_scratch_location=gs://my-sax/pathways",
)
WORKER = (
    "--server_port=29005",
    f"--resource_manager_address={HEAD}:29001",
    "--gcs_scratch_location=gs://my-sax/pathways",
)
VARIABLES = {
    "pathways-rm": {
        "REPLICATED_JOB_NAME": "pathways-head",
        "JOBSET_NAME": "sax-0",
        "HOST_ADDRESS": HEAD,
        "TPU_SKIP_MDS_QUERY": "true",
        "JOB_COMPLETION_INDEX": "0",
    },
    "pathways-proxy": {"PATHWAYS_HEAD": HEAD, "JOB_COMPLETION_INDEX": "0"},
    "pathways-worker": {  # of the last host of the last slice
        "TPU_MIN_LOG_LEVEL": "0",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "XCLOUD_ENVIRONMENT": "GCP",
        "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false",
        "MEGASCALE_NUM_SLICES": "2",
        "JOBSET_NAME": "sax-0",
        "REPLICATED_JOB_NAME": "worker",
        "MEGASCALE_SLICE_ID": "1",
        "PATHWAYS_HEAD": HEAD,
        "MEGASCALE_COORDINATOR_ADDRESS": HEAD,
        "JOB_COMPLETION_INDEX": "7",
    },
}


def job(topology: str = "v5e:4x8", **options: Any) -> dict[str, Any]:
    """Return a PathwaysJob `sax-0` of two slices, unless the options say otherwise."""
    return _one("pathways", topology, options)


def plain_jobset(topology: str = "v5e:4x8", **options: Any) -> dict[str, Any]:
    """Return the JobSet that is rendered for clusters without the controller."""
    return _one("pathways-jobset", topology, options)


def programs(topology: str = "v5e:4x8", **options: Any) -> dict[str, Container]:
    """Return each kind of container with its flags and variables; the last one of each kind."""
    made = rendered(topology, kind="pathways", name="sax", replicas=1, pathways=_options(options))
    pods = [pod for pod in pods_of(made.objects) if pod.owner.startswith("sax-0-")]
    return {each.name: each for pod in pods for each in pod.containers}


def _one(kind: str, topology: str, options: dict[str, Any]) -> dict[str, Any]:
    (found,) = rendered(
        topology, kind=kind, name="sax", replicas=1, pathways=_options(options)
    ).servers
    return found


def _options(options: dict[str, Any]) -> PathwaysOptions:
    return PathwaysOptions(**({"slices": 2} | options))
