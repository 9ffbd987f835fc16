"""Mixture of experts on a TPU: routes sorted by expert, one grouped product per projection.

As in `expert_blocks` there is no capacity: no token is dropped and none affects another. Unused
experts are not read; the others are read in their stored, quantised form.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from model_server.kernels.small_numbers import Packed, fits
from model_server.kernels.tpu.grouped_matmul import grouped_matmul
from model_server.models.layers.expert_blocks import Kernel, Kernels, count_of
from model_server.models.layers.layers import Activation
from model_server.models.layers.routing import Routes
from model_server.models.weights.quantized import Quantized

Sum = Callable[[jax.Array], jax.Array]


def in_groups(
    x: jax.Array,  # [T, D]
    routes: Routes,
    kernels: Kernels,  # of E experts
    activation: Activation,
    first: jax.Array | int,  # index of the first of them
    *,
    sum_inputs: Sum = lambda made: made,  # over the devices that shard D
    interpret: bool = False,
) -> jax.Array:
    """f32[T, D]: as `in_blocks`; where the down product is sharded on D, this device's shard."""
    tokens, chosen = routes.experts.shape
    count = count_of(kernels)
    experts = routes.experts.reshape(-1) - first
    mine = jnp.where((experts >= 0) & (experts < count), experts, count)
    order = jnp.argsort(mine, stable=True)  # other devices' routes come last
    sizes = jnp.bincount(mine, length=count + 1)[:count].astype(jnp.int32)

    def product(x: jax.Array, kernel: Kernel) -> jax.Array:
        return grouped_matmul(x.astype(kernel.dtype), packed_of(kernel), sizes, interpret=interpret)

    seen = x.at[order // chosen].get(mode="promise_in_bounds")
    gate, up = (sum_inputs(product(seen, kernel)) for kernel in (kernels.gate, kernels.up))
    made = product(activation(gate) * up, kernels.down)
    # Back to token order; routes of other devices count as zero, whatever their weight.
    by_token = made.at[jnp.argsort(order)].get(mode="promise_in_bounds").reshape(tokens, chosen, -1)
    held = (mine < count).reshape(tokens, chosen)
    return jnp.sum(by_token * jnp.where(held, routes.weights, 0.0)[..., None], axis=1)


def packed_of(kernel: Kernel) -> Packed:
    return kernel.packed() if isinstance(kernel, Quantized) else Packed(kernel, None, None)


def can_group(kernels: Kernels) -> bool:
    return all(fits(packed_of(kernel)) for kernel in kernels)
