"""Layers with and without experts, as later families list them, over usual attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model_server.kernels.pages import HeadShape
from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    gated_ffw,
    pre_norm_recipe,
)
from model_server.models.families.latent_recipe import spare_layers
from model_server.models.families.sigmoid_experts import first_sparse
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Recipe, serving

SPARSE = {"dense": False, "sparse": True}


def listed_sparse(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it has experts, by `mlp_layer_types` or all but the first ones.

    Raises CheckpointError.
    """
    return kinds_of_layers(keys, SPARSE, "mlp_layer_types") or first_sparse(keys)


def routed_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    *,
    shapes: Sequence[AttentionShape],
    ropes: Sequence[Rope | None],
    attention: BuildAttention,
    sparse: Sequence[bool],
    routed: BuildFfw,
    cached: AttentionShape | None = None,
    others: Sequence[HeadShape | None] = (),
) -> Recipe:
    """Build a recipe over Llama-style layers, some with experts; sequences: one per layer.

    cached: shape that says what layers cache, None: of the first layer; others: of those that
    cache something else, as in `decoder_recipe`.
    """
    dense = None if all(sparse) else gated_ffw(keys)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=shapes,
        rope=ropes,
        attention=attention,
        ffw=[routed if its or dense is None else dense for its in sparse],
        shape=cached or shapes[0],
        others=others,
    )
    return replace(recipe, unused=spare_layers(keys, len(shapes)))
