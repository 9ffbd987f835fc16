"""gcloud and kubectl commands that create what a cluster lacks, ready to paste. Pure."""

from __future__ import annotations

import shlex

from sax.slices import Machine, TpuSlice

# Of the head's pod: 8 CPUs and 34 GB for the model server, 24 and 132 for Pathways' two programs.
HEAD_NEEDS = "32 CPUs and 166 GB"
# A node keeps some CPUs and memory for itself and its agents, so one of 32 CPUs is too small.
HEAD_MACHINE = Machine("n2-standard-64", chips=0, vcpus=64, memory=256 * 2**30)
_RELEASES = "https://github.com/kubernetes-sigs/{}/releases/latest/download/manifests.yaml"


# Older ones have faults that k8s/doctor names; docs/how_to/kubernetes.md asks for these.
LEAST = {
    "jobset": "0.11.0",
    "lws": "0.5.0",
    "kueue": "0.15.0",
    "keda": "2.17.0",
    "pathwaysjob": "0.1.4",
}


def install_command(project: str) -> str:
    """Return the command that installs the latest release of jobset, lws or kueue."""
    return f"kubectl apply --server-side -f {_RELEASES.format(project)}"


def node_pool_command(
    there: TpuSlice, name: str, *, flex_start: bool = False, spot: bool = False
) -> str:
    """Return the command that creates a node pool of one slice."""
    words = [
        *("gcloud container node-pools create", name, "--cluster=CLUSTER --location=LOCATION"),
        f"--node-locations=ZONE --machine-type={there.machine.name}",
    ]
    if there.hosts > 1:  # in a pool of single hosts each node is a slice: no topology allowed
        words.append(f"--tpu-topology={there.size}")
    words.append(f"--num-nodes={0 if flex_start else there.hosts}")
    words.append("--workload-metadata=GKE_METADATA")
    if flex_start:
        words.append(
            f"--flex-start --enable-autoscaling --min-nodes=0 --max-nodes={there.hosts} "
            "--reservation-affinity=none --no-enable-autorepair"
        )
    if spot:
        words.append("--spot")
    return " ".join(words)


def head_pool_command(name: str, heads: int) -> str:
    """Return the command that creates a node for each head of Pathways."""
    return (
        f"gcloud container node-pools create {name.rstrip('-')} --cluster=CLUSTER "
        f"--location=LOCATION --node-locations=ZONE --machine-type={HEAD_MACHINE.name} "
        f"--num-nodes={heads} --workload-metadata=GKE_METADATA"
    )


def kubectl(*words: str, namespace: str | None = None) -> str:
    where = ("-n", namespace) if namespace else ()
    return shlex.join(("kubectl", *where, *words))
