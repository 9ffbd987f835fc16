"""What a recipe makes of a config.json, layer by layer, without memory or weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from model_server.models.layers.attention import AttentionShape
from model_server.models.registry import make_recipe
from model_server.models.weights.weight import WeightForm

# A whole config.json of most decoders, for tests that add a key to it.
TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}


def decoder_of(config: Mapping[str, Any], dtype: Any = jnp.float32, **overrides: str) -> Any:
    """The module as the loader builds it, its weights only declared."""
    recipe: Any = make_recipe("auto", config, overrides)
    return nnx.eval_shape(lambda: recipe.build(WeightForm(dtype=dtype)))


def shapes_of(config: Mapping[str, Any]) -> list[AttentionShape]:
    return [layer.attention.shape for layer in decoder_of(config).layers]


def windows_of(config: Mapping[str, Any]) -> list[int | None]:
    return [shape.window for shape in shapes_of(config)]
