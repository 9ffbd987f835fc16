"""Gemma 4's layer, and its experts beside a dense feed-forward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.families.gemmas.lending_recipe import Norms
from model_server.models.layers.experts import Experts
from model_server.models.layers.layers import UnitNorm
from model_server.models.layers.lending.lent_attention import KeysValues, LentAttention
from model_server.models.layers.lending.per_layer import PerLayerGate
from model_server.models.layers.rope import Rotary
from model_server.models.layers.routing import Router, Routes
from model_server.models.weights.weight import weight


class ScaledRouter(nnx.Module):
    """A router behind a norm, whose weights have a factor for each expert."""

    def __init__(
        self, router: Router, embed: int, experts: int, prefix: str, *, epsilon: float
    ) -> None:
        self.router, self.norm, self.shrink = router, UnitNorm(epsilon), embed**-0.5

        def vector(name: str, size: int) -> nnx.Param:
            return weight((size,), (None,), (f"{prefix}.{name}",), dtype=jnp.float32)

        self.scale = vector("scale", embed)
        self.of_experts = vector("per_expert_scale", experts)

    def __call__(self, x: jax.Array) -> Routes:
        routes = self.router(self.norm(x) * (self.scale[...] * self.shrink)[None])
        factors = self.of_experts[...].at[routes.experts].get(mode="promise_in_bounds")
        return Routes(routes.experts, routes.weights * factors)


class ExpertsBeside(nnx.Module):
    """Experts between norms of their own, added to a normed dense feed-forward."""

    def __init__(
        self,
        after_dense: nnx.Module,
        before: nnx.Module,
        router: ScaledRouter,
        experts: Experts,
        after: nnx.Module,
    ) -> None:
        self.after_dense = after_dense
        self.before = before
        self.router = router
        self.experts = experts
        self.after = after

    def __call__(self, x: jax.Array, dense: jax.Array) -> jax.Array:
        """Maps the layer's f32[T, D], and what its dense feed-forward made of it, to f32[T, D]."""
        routed = self.experts(self.before(x), self.router(x))
        return self.after_dense(dense) + self.after(routed)


class ScaledSandwichLayer(nnx.Module):
    """Four norms around two halves, then a gate for the layer's own inputs, and a factor of all."""

    def __init__(
        self,
        norms: Norms,
        attention: LentAttention,
        ffw: nnx.Module,
        scale: str,  # tensor
        *,
        experts: ExpertsBeside | None,
        gate: PerLayerGate | None,
    ) -> None:
        self.before_attention, self.after_attention, self.before_ffw, self.after_ffw = norms
        self.attention = attention
        self.ffw = ffw
        self.experts = experts
        self.gate = gate
        self.scale = weight((1,), (None,), (scale,), dtype=jnp.float32)

    def __call__(
        self,
        x: jax.Array,  # f32[T, D]
        own: jax.Array,  # f32[T, P]
        rotation: Rotary,
        pages: LayerPages,
        lent: KeysValues | None,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages, KeysValues]:
        mixed, pages, lent = self.attention(self.before_attention(x), rotation, pages, lent, batch)
        x = x + self.after_attention(mixed)
        made = self.ffw(self.before_ffw(x))
        x = x + self.after_ffw(made if self.experts is None else self.experts(x, made))
        if self.gate is not None:
            x = x + self.gate(x, own)
        return x * self.scale[...][None], pages, lent
