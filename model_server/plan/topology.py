"""TPU slices that are somewhere else, as the compiler in libtpu knows them. Needs no TPU."""

from __future__ import annotations

import os
from typing import Any

from jax.experimental import topologies

# libtpu asks the metadata server of a TPU machine, and lets one process in at a time: neither
# is for who only compiles.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def devices_of(name: str) -> list[Any]:
    """The devices of a slice such as v5e:4x8, to compile for."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)
