"""How much of a TPU host's memory a model server asks for, and why. Pure."""

from __future__ import annotations

from sax.kubernetes.machines import TpuSlice
from sax.kubernetes.planned import Planned

_GIB = 2**30
_PROCESS = 12 * _GIB  # Python, jax, libtpu, and the compiler at its largest bucket
_UNPLANNED = 32 * _GIB  # what the manifests say where nothing is known
_OTHERS = 2 * _GIB  # logging, metrics and network agents that run on every node


def memory_request(there: TpuSlice, planned: Planned | None) -> int:
    """Bytes to request for one host, whole GiB.

    Weights pass through the host on their way to its chips: each host reads the parts that its own
    devices hold, two tensors at a time, and what was read lies in the page cache of the machine
    until something else needs the room. So a host needs much less than its weights, and uses as
    much as them while it loads. The request is the larger of the two: the process, and all the
    weights of this host's devices once. A pod that stays below its request is the last to be
    evicted where a node runs short.

    Every TPU machine has more memory than its chips have, so this fits. It never is more than
    a node can give: what it keeps for itself and for agents is left out, or the pod would wait for
    a larger node for ever. There is no limit: a machine is one pod's alone (it has all the chips),
    and to be killed beside free memory helps nobody.

    Without a plan nothing is known of the weights, and a moderate fixed number is asked for.
    """
    most = there.machine.allocatable - _OTHERS
    wanted = _UNPLANNED
    if planned is not None:
        wanted = _PROCESS + planned.weights_of_slice // there.hosts
    return max(min(-(-wanted // _GIB), most // _GIB), 1) * _GIB


def quantity(size: int) -> str:
    """As Kubernetes writes it: 32Gi."""
    return f"{size // _GIB}Gi"
