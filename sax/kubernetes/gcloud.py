"""Commands of gcloud and kubectl that make what a cluster lacks, ready to be pasted. Pure."""

from __future__ import annotations

import shlex

from sax.kubernetes.machines import TpuSlice

_RELEASES = "https://github.com/kubernetes-sigs/{}/releases/latest/download/manifests.yaml"


def install_command(project: str) -> str:
    """The controller and the kinds of jobset, lws or kueue: their last release."""
    return f"kubectl apply --server-side -f {_RELEASES.format(project)}"


def node_pool_command(
    there: TpuSlice, name: str, *, flex_start: bool = False, spot: bool = False
) -> str:
    """A node pool of one slice."""
    words = [
        *("gcloud container node-pools create", name, "--cluster=CLUSTER --location=LOCATION"),
        f"--node-locations=ZONE --machine-type={there.machine.name}",
    ]
    if there.hosts > 1:  # a pool of single hosts is a slice for each node, and takes no topology
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


def kubectl(*words: str, namespace: str | None = None) -> str:
    """A kubectl command with every word quoted that needs it."""
    where = ("-n", namespace) if namespace else ()
    return shlex.join(("kubectl", *where, *words))
