"""Ministral 3: Mistral with YaRN, and queries that grow with their position.

Source: Mistral AI 2025, "Introducing Mistral 3", with the growth of Nakanishi 2025
(arXiv:2501.19399); names and config keys are those of Hugging Face's `Ministral3ForCausalLM`. The
vision encoder, if a checkpoint has one, is `media/pixtral_vision_encoder`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import QueryGrowth, Rope, rope_of
from model_server.models.media.media_recipe import encoders
from model_server.models.media.pixtral_vision_encoder import MISTRAL3_KEYS, mistral3_vision
from model_server.models.recipe import Family, Recipe, serving
from sax.errors import CheckpointError

KEYS = KnownKeys("ministral3", (*DECODER, "sliding_window", *MISTRAL3_KEYS), DECODER_OFF)
_ROPE = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
}
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = replace(attention_shape(keys), window=keys.whole_or_none("sliding_window"))
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=_rope(keys, shape.head_dim),
    )
    return replace(recipe, media=encoders(mistral3_vision(keys, recipe.embed, values)))


def _rope(keys: ConfigKeys, head_dim: int) -> Rope:
    """Raises CheckpointError."""
    given = settings_of(keys) or dict(_ROPE)
    growth = query_growth(keys, given)
    rope = rope_of(keys.all | {"rope_parameters": given}, head_dim)
    return replace(rope, query_growth=growth)


def query_growth(keys: ConfigKeys, given: dict[str, Any]) -> QueryGrowth:
    """Take the growth out of a rope's settings. Raises CheckpointError."""
    beta = given.pop("llama_4_scaling_beta", None)
    original = given.get("original_max_position_embeddings")
    if type(beta) not in (int, float) or type(original) is not int or original < 1:
        raise CheckpointError(
            f"config.json has llama_4_scaling_beta = {beta!r} and original_max_position_embeddings "
            f"= {original!r} among its rope settings; the {keys.family} family needs two numbers"
        )
    return QueryGrowth(float(beta), original)


FAMILY = Family("ministral3", ("ministral3",), "Ministral 3", configure)
