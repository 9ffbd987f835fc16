"""A.X K1: DeepSeek-V3's layers, with a norm behind the experts of each.

Source: SK Telecom 2026, "A.X K1"; names and config keys are those of Hugging Face's
`AXK1ForCausalLM`. Layers that draft are skipped: the reference computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import KnownKeys
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "axk1",
    (*LATENT, *ROUTED, "mlp_layer_types", "rope_interleave", "router_unbiased"),
    LATENT_OFF,
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "max_position_embeddings": 32768,
    "n_group": 8,
    "n_routed_experts": 192,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "topk_group": 4,
}


class NormedFeedForward(nnx.Module):
    """norm(ffw(x))."""

    def __init__(self, ffw: nnx.Module, norm: nnx.Module) -> None:
        self.ffw = ffw
        self.norm = norm

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps f32[T, D] to f32[T, D]."""
        return self.norm(self.ffw(x))


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.whole("q_lora_rank")  # queries are always of low rank
    unbiased = keys.flag("router_unbiased")  # not of config.json: see checkpoints/opening.py
    names = RoutedNames(bias=None) if unbiased else RoutedNames()
    routed, sparse = routed_ffw(keys, names=names), listed_sparse(keys)

    def normed(prefix: str, form: WeightForm) -> NormedFeedForward:
        return NormedFeedForward(
            routed(prefix, form), norm_of(keys, f"{prefix}.post_mlp_layernorm")
        )

    dense = (index for index, its in enumerate(sparse) if not its)
    recipe = latent_recipe(
        keys,
        values,
        sparse,
        normed,
        # Published files hold the norm in dense layers, too, which do not use it.
        unused=tuple(f"model.layers.{index}.post_mlp_layernorm." for index in dense),
    )
    return replace(recipe, own_head=None)


FAMILY = Family("axk1", ("axk1",), "A.X K1", configure, own_types_only=True)
