"""Which kernel computes attention on which platform.

A kernel is imported when it is chosen: Pallas takes its time, and few servers need any of it.
"""

from __future__ import annotations

from jax.sharding import AbstractMesh, Mesh

from model_server.kernels import xla
from model_server.kernels.paged import Kernel


def kernel_for(
    platform: str, mesh: Mesh | AbstractMesh, heads: str | None, pages: str | None
) -> Kernel:
    """platform: cpu, gpu or tpu, as jax names them.

    heads, pages: the mesh axes that divide the query heads, and the KV heads of the pages.
    """
    if platform == "tpu":
        from model_server.kernels.tpu_attention import TpuAttention

        return TpuAttention(mesh, heads, pages)
    if platform in ("gpu", "cuda", "rocm"):
        from model_server.kernels.gpu_attention import GpuAttention

        return GpuAttention(mesh, heads, pages)
    return xla.KERNEL
