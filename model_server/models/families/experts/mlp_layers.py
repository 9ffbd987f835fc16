"""Layers with and without experts, as later families list them, over usual attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    decoder_recipe,
    gated_ffw,
    norm_of,
)
from model_server.models.families.latent_recipe import spare_layers
from model_server.models.families.sigmoid_experts import first_sparse
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Recipe, serving
from model_server.models.weights.weight import WeightForm

_SPARSE = {"dense": False, "sparse": True}


def listed_sparse(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it has experts, by `mlp_layer_types` or all but the first ones.

    Raises CheckpointError.
    """
    return kinds_of_layers(keys, _SPARSE, "mlp_layer_types") or first_sparse(keys)


def routed_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    *,
    shapes: Sequence[AttentionShape],
    ropes: Sequence[Rope | None],
    attention: BuildAttention,
    sparse: Sequence[bool],
    routed: BuildFfw,
) -> Recipe:
    """Build a recipe over Llama-style layers, some with experts; sequences: one per layer."""
    dense = None if all(sparse) else gated_ffw(keys)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        ffw = routed if sparse[index] or dense is None else dense
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(prefix, shapes[index], form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shapes[0],
        ropes=ropes,
        layer=layer,
        windows=[shape.window for shape in shapes],
    )
    return replace(recipe, unused=spare_layers(keys, len(shapes)))
