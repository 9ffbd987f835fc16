"""Compiling for NVIDIA GPUs with the real compiler, on a machine that has none.

XLA compiles for a GPU that is described to it. The compiler is in JAX's plugin for CUDA, which
needs no driver for this; the sizes are those of NVIDIA's data sheets.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh

from model_server.models.weights.sharding import AXES

_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

needs_compiler = pytest.mark.skipif(
    not any(map(importlib.util.find_spec, _PLUGINS)),
    reason="JAX's plugin for CUDA is not installed (pip install 'jax[cuda12]'): no GPU compiler",
)

# Compute capability, multiprocessors, shared memory that one of them has and lends to a program.
CHIPS = {
    "a100": ((8, 0), 108, 167936, 166912),
    "l40s": ((8, 9), 142, 102400, 101376),
    "h100": ((9, 0), 132, 233472, 232448),
}


def one_gpu(chip: str) -> Mesh:
    """A mesh of one such GPU."""
    described = topologies.get_topology_desc(
        platform="cuda", topology_name=chip, topology="1x1x1", target_config=_description(chip)
    )
    return Mesh(np.asarray(described.devices).reshape(1, 1, 1), AXES)


def _description(chip: str) -> str:
    (major, minor), processors, memory, lent = CHIPS[chip]
    return f"""
        gpu_device_info {{
            cuda_compute_capability {{ major: {major} minor: {minor} }}
            core_count: {processors}
            shared_memory_per_core: {memory}
            shared_memory_per_block_optin: {lent}
            shared_memory_per_block: 49152
            threads_per_block_limit: 1024
            threads_per_warp: 32
            threads_per_core_limit: 2048
            fpus_per_core: 128
            block_dim_limit_x: 2147483647
            block_dim_limit_y: 65535
            block_dim_limit_z: 65535
            memory_bandwidth: 2000000000000
            l2_cache_size: 41943040
            clock_rate_ghz: 1.4
            device_memory_size: 42949672960
            registers_per_core_limit: 65536
            registers_per_block_limit: 65536
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 7 }}
        runtime_version {{ major: 12 minor: 9 }}
        device_description_str: "{chip}"
    """
