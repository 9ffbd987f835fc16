"""Which kernel computes attention on which devices.

A kernel is imported when it is chosen: Pallas takes its time, and few servers need any of it.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from model_server.kernels import xla
from model_server.kernels.paged import Kernel

AMPERE, ADA = 8.0, 8.9  # compute capabilities; Triton casts float8 from Ada on


def kernel_for(
    platform: str,
    mesh: Mesh | AbstractMesh,
    heads: str | None,
    pages: str | None,
    dtype: jnp.dtype,
) -> Kernel:
    """The fastest there is; plain XLA runs everywhere.

    platform: cpu, gpu or tpu, as jax names them. heads, pages: the mesh axes that divide the query
    heads, and the KV heads of the pages. dtype: of the pages.
    """
    if platform == "tpu":
        from model_server.kernels.tpu_attention import TpuAttention

        return TpuAttention(mesh, heads, pages)
    least = ADA if dtype == jnp.float8_e4m3fn else AMPERE
    if platform == "gpu" and _capability(mesh) >= least:
        from model_server.kernels.gpu_attention import GpuAttention

        return GpuAttention(mesh, heads, pages)
    return xla.KERNEL


def _capability(mesh: Mesh | AbstractMesh) -> float:
    """Of an NVIDIA GPU; 0: of another maker. A mesh of sizes alone stands for any GPU."""
    if isinstance(mesh, AbstractMesh):
        return ADA
    try:
        return float(mesh.devices.flat[0].compute_capability)
    except (AttributeError, ValueError):
        return 0.0
