"""Names the kernels that compute a model on CPUs, and what stays with XLA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import jax.numpy as jnp

from model_server.kernels.cpu.attention import LANES, MOST_DIM, supports
from model_server.kernels.cpu.served import described, is_native
from model_server.kernels.pages import LayerPages
from model_server.loading.deployment import Deployment
from model_server.models.weights.weight import Declaration
from sax.format import human_bytes


def kernels_of(deployment: Deployment) -> str:
    """Return the kernels in one line; "": the model is not on CPUs.

    "avx512_bf16, 2 threads; XLA's for 3.1 MiB of float8 weights", or "XLA's: SAX_CPU_KERNELS=off".
    """
    layout = deployment.layout
    used = described(layout.platform, layout.mesh.size)
    if not is_native(layout.platform, layout.mesh.size):
        return used
    left = " and ".join(_left_to_xla(deployment))
    return f"{used}; XLA's for {left}" if left else used


def _left_to_xla(deployment: Deployment) -> Iterator[str]:
    taken: Counter[str] = Counter()
    for weight in deployment.blueprint.declarations:
        if _is_matrix(weight) and not weight.is_tiled:
            taken[_kind(weight)] += weight.bytes
    if taken:
        kinds = ", ".join(f"{human_bytes(size, 1)} of {kind}" for kind, size in taken.items())
        yield f"{kinds} weights"
    attending = [each for each in deployment.pool_shapes if isinstance(each, LayerPages)]
    if not all(map(supports, attending)):
        yield (
            f"attention (native: pages and heads of a multiple of {LANES}, "
            f"heads of at most {MOST_DIM} numbers)"
        )


def _is_matrix(weight: Declaration) -> bool:
    """True for matrices, alone or one per expert; factors of adapters have kernels of their own,
    and filters of convolutions, whose second dimension is 1, need none."""
    return len(weight.shape) > 1 and min(weight.shape) > 1 and weight.low_rank is None


def _kind(weight: Declaration) -> str:
    number = weight.packing.kind if weight.packing else jnp.dtype(weight.dtype).name
    return f"experts' {number}" if len(weight.shape) > 2 else number
