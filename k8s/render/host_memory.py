"""Memory request of a model server on a TPU host, and the reasons for its size. Pure."""

from __future__ import annotations

from k8s.render.planned import Planned
from sax.slices import TpuSlice

_GIB = 2**30
_PROCESS = 12 * _GIB  # Python, jax, libtpu, and the compiler at its largest bucket
_UNPLANNED = 32 * _GIB  # as in the manifests, where nothing is known
_OTHERS = 2 * _GIB  # logging, metrics and network agents on every node


def memory_request(there: TpuSlice, planned: Planned | None) -> int:
    """Return the bytes to request for one host, in whole GiB.

    Weights pass through the host on their way to its chips: each host reads the parts held by its
    own devices, two tensors at a time, and the data read stays in the page cache until something
    else needs the memory. So a host needs much less than its weights, but uses as much while it
    loads. The request covers the larger need: the process, plus all weights of this host's devices
    once. A pod below its request is evicted last when a node runs short.

    Every TPU machine has more memory than its chips, so this fits. The request never exceeds what
    a node can give after its own reservation and its agents; otherwise the pod would wait forever
    for a larger node. There is no limit: a machine serves one pod alone (which has all the chips),
    and there is no reason to kill it while memory is free.

    Without a plan the size of the weights is unknown, and the request is a moderate constant.
    """
    most = there.machine.allocatable - _OTHERS
    wanted = _UNPLANNED
    if planned is not None:
        wanted = _PROCESS + planned.weights_of_slice // there.hosts
    return max(min(-(-wanted // _GIB), most // _GIB), 1) * _GIB


def quantity(size: int) -> str:
    return f"{size // _GIB}Gi"
