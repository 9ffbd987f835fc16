"""Chooses the attention kernel for a platform.

Kernels are imported on demand: importing Pallas is slow, and few servers need any of it.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh

from model_server.kernels import xla
from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.cpu.served import is_native
from model_server.kernels.paged import Kernel

AMPERE, ADA = 8.0, 8.9  # compute capabilities; Triton casts float8 from Ada on


def kernel_for(
    platform: str,
    mesh: Mesh | AbstractMesh,
    heads: str | None,
    pages: str | None,
    dtype: jnp.dtype,
    memories: str | None = None,
) -> Kernel:
    """Return the fastest available kernel; plain XLA runs everywhere.

    platform: cpu, gpu or tpu, as jax names them. heads, pages: mesh axes that shard the query heads
    and the KV heads of the pages. dtype: of the pages. memories: the axis that shards those of
    recurrent layers.
    """
    if platform == "tpu":
        from model_server.kernels.tpu.attention import TpuAttention

        return TpuAttention(mesh, heads, pages, memories=memories)
    least = ADA if dtype == jnp.float8_e4m3fn else AMPERE
    if platform == "gpu" and _capability(mesh) >= least:
        from model_server.kernels.gpu.attention import GpuAttention

        return GpuAttention(mesh, heads, pages)
    if is_native(platform, mesh.size):
        return CpuAttention()
    return xla.KERNEL


def _capability(mesh: Mesh | AbstractMesh) -> float:
    """Compute capability of an NVIDIA GPU, else 0; an abstract mesh stands for any GPU."""
    if isinstance(mesh, AbstractMesh):
        return ADA
    try:
        return float(mesh.devices.flat[0].compute_capability)
    except (AttributeError, ValueError):
        return 0.0
