"""Which kernel computes attention on which platform."""

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
    return xla.KERNEL
