"""Mixture of experts: routes sorted by expert, one product per projection.

A grouped product on a TPU, a native one on a CPU. As in `expert_blocks` there is no capacity: no
token is dropped and none affects another. Experts that no token uses are not read; the others are
read in their stored, quantised form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from model_server.kernels.cpu.experts import ByExpert, expert_product, gated_expert_product
from model_server.kernels.small_numbers import Packed, can_gate, fits
from model_server.models.layers.activations import OWN_GATES, Activation, gate_of, gated
from model_server.models.layers.expert_blocks import ExpertBiases, Kernel, Kernels, count_of
from model_server.models.layers.layers import sum_in_order
from model_server.models.layers.routing import Routes
from model_server.models.weights.quantized import Quantized
from model_server.models.weights.tiled import TiledExperts


class TiledKernels(NamedTuple):
    """Weights of all experts of a layer, in tiles."""

    gate: TiledExperts | None  # [E, F, D]; None: the activation is of what goes up
    up: TiledExperts  # [E, F, D]
    down: TiledExperts  # [E, D, F]


def in_tiles(
    x: jax.Array,  # f32[T, D]
    routes: Routes,
    kernels: TiledKernels,
    activation: Activation,
    live: jax.Array | None,  # i32[T]: the tokens to compute, then -1; None: all
    *,
    biases: ExpertBiases | None = None,
    weigh_inputs: bool = False,
) -> jax.Array:
    """f32[T, D]: weighted sum of the experts on each token's routes; zeros for other tokens.

    weigh_inputs: the weights multiply what an expert sees instead of what it gives.
    """
    tokens, chosen = routes.experts.shape
    count = kernels.up.form.count
    experts = _of_live(routes.experts, live, count).reshape(-1)
    order = jnp.argsort(experts, stable=True).astype(jnp.int32)
    ends = jnp.cumsum(jnp.bincount(experts, length=count + 1)[:count]).astype(jnp.int32)
    by = ByExpert(order // chosen, ends)
    if weigh_inputs:
        x = (x[:, None] * routes.weights[..., None]).reshape(-1, x.shape[1])
        by = by._replace(rows=order)
    of_rows = jnp.minimum(experts[order], count - 1)
    inner = _inner(x, by, kernels, activation, biases, of_rows)
    made = _product(inner, kernels.down, by._replace(rows=jnp.arange(len(order), dtype=jnp.int32)))
    by_token = made.at[jnp.argsort(order)].get(mode="promise_in_bounds").reshape(tokens, chosen, -1)
    shares = jnp.ones_like(routes.weights) if weigh_inputs else routes.weights
    return sum_in_order(by_token * shares[..., None], axis=1)


def _of_live(experts: jax.Array, live: jax.Array | None, nobody: int) -> jax.Array:
    """i32[T, k]: the experts of tokens to compute, and `nobody` for the others."""
    if live is None or not live.size:
        return experts
    tokens = experts.shape[0]
    places = jnp.where(live < 0, tokens, live)  # -1 would be the last one
    there = jnp.zeros(tokens, jnp.bool).at[places].set(True, mode="drop")
    return jnp.where(there[:, None], experts, nobody)


def _inner(
    x: jax.Array,
    by: ByExpert,
    kernels: TiledKernels,
    activation: Activation,
    biases: ExpertBiases | None,
    of_rows: jax.Array,  # i32[R]: the expert of each row
) -> jax.Array:
    """f32[R, F]: what the down products take."""
    gate, up, _ = kernels
    if gate is None:
        return activation(_product(x, up, by))
    known = gate_of(activation)
    if known is not None and biases is None and gate.form == up.form:
        return gated_expert_product(up.form, x, gate.values, up.values, by, known)
    opening, going_up = (_product(x, each, by) for each in (gate, up))
    if biases is not None:
        opening, going_up = (
            part + added.at[of_rows].get(mode="promise_in_bounds")
            for part, added in zip((opening, going_up), biases, strict=True)
        )
    return gated(activation, opening, going_up)


def _product(x: jax.Array, kernel: TiledExperts, by: ByExpert) -> jax.Array:
    return expert_product(kernel.form, x, kernel.values, by)


Sum = Callable[[jax.Array], jax.Array]


def in_groups(
    x: jax.Array,  # [T, D]
    routes: Routes,
    kernels: Kernels,  # of E experts
    activation: Activation,
    first: jax.Array | int,  # index of the first of them
    *,
    biases: ExpertBiases | None = None,
    weigh_inputs: bool = False,
    sum_inputs: Sum | None = None,  # over the devices that shard D, if any do
    interpret: bool = False,
) -> jax.Array:
    """f32[T, D]: as `in_blocks`; where the down product is sharded on D, this device's shard."""
    tokens, chosen = routes.experts.shape
    count = count_of(kernels)
    experts = routes.experts.reshape(-1) - first
    mine = jnp.where((experts >= 0) & (experts < count), experts, count)
    order = jnp.argsort(mine, stable=True)  # other devices' routes come last
    sizes = jnp.bincount(mine, length=count + 1)[:count].astype(jnp.int32)
    groups = _Groups(sizes, interpret)
    seen = x.at[order // chosen].get(mode="promise_in_bounds")
    if weigh_inputs:
        seen = seen * routes.weights.reshape(-1)[order][:, None]
    add = sum_inputs or _as_it_is
    if kernels.gate is None:
        inner = activation(add(groups.product(seen, kernels.up)))
    elif sum_inputs is None and _can_gate(kernels.gate, kernels.up, activation):
        inner = groups.gated(seen, kernels, activation, biases)
    else:
        gate, up = (add(groups.product(seen, each)) for each in (kernels.gate, kernels.up))
        if biases is not None:
            of_rows = jnp.minimum(mine[order], count - 1)
            gate, up = (
                part + added.at[of_rows].get(mode="promise_in_bounds")
                for part, added in zip((gate, up), biases, strict=True)
            )
        inner = gated(activation, gate, up)
    made = groups.product(inner, kernels.down)
    # Back to token order; routes of other devices count as zero, whatever their weight.
    by_token = made.at[jnp.argsort(order)].get(mode="promise_in_bounds").reshape(tokens, chosen, -1)
    held = (mine < count).reshape(tokens, chosen)
    weights = jnp.ones_like(routes.weights) if weigh_inputs else routes.weights
    return jnp.sum(by_token * jnp.where(held, weights, 0.0)[..., None], axis=1)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Products of rows that are sorted by expert."""

    sizes: jax.Array  # i32[E]: rows of each expert
    interpret: bool

    def product(self, x: jax.Array, kernel: Kernel) -> jax.Array:
        """f32[T, out]."""
        from model_server.kernels.tpu.grouped_matmul import grouped_matmul  # with Pallas

        x = x.astype(kernel.dtype)
        return grouped_matmul(x, packed_of(kernel), self.sizes, interpret=self.interpret)

    def gated(
        self,
        x: jax.Array,
        kernels: Kernels,
        activation: Activation,
        biases: ExpertBiases | None,
    ) -> jax.Array:
        """activation(gate) * up, as the down product takes it: rounded, in half the bytes."""
        from model_server.kernels.tpu.grouped_matmul import gated_grouped_matmul  # with Pallas

        gate, up, down = kernels
        assert gate is not None
        return gated_grouped_matmul(
            x.astype(gate.dtype),
            packed_of(gate),
            packed_of(up),
            self.sizes,
            functools.partial(gated, activation),
            down.dtype,
            biases=biases or (),
            interpret=self.interpret,
        )


def _can_gate(gate: Kernel, up: Kernel, activation: Activation) -> bool:
    """True if one kernel can compute gate, activation and up: not every one is known on TPUs."""
    known = gate_of(activation) is not None or isinstance(activation, OWN_GATES)
    if not known or gate.dtype != up.dtype:
        return False
    return can_gate(packed_of(gate), packed_of(up))


def _as_it_is(made: jax.Array) -> jax.Array:
    return made


def packed_of(kernel: Kernel) -> Packed:
    return kernel.packed() if isinstance(kernel, Quantized) else Packed(kernel, None, None)


def can_group(kernels: Kernels) -> bool:
    return all(fits(packed_of(kernel)) for kernel in kernels if kernel is not None)
