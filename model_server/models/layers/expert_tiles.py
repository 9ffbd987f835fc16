"""Mixture of experts on a CPU: routes sorted by expert, one native product per projection.

As in `expert_blocks` there is no capacity, and no token affects another. Experts that no token uses
are not read, nor are those of padding.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from model_server.kernels.cpu.experts import ByExpert, expert_product, gated_expert_product
from model_server.models.layers.activations import Activation, gate_of, gated
from model_server.models.layers.expert_blocks import ExpertBiases
from model_server.models.layers.layers import sum_in_order
from model_server.models.layers.routing import Routes
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
    if live is None:
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
