"""Helium: Llama that rotates neighbouring dimensions of a head.

Source: Kyutai 2025, "Helium 1: a modular and multilingual LLM"; names and config keys are those of
Hugging Face's `HeliumForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.dense.glm import attention_of
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys("helium", (*DECODER, "attention_bias", "mlp_bias"), DECODER_OFF)
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-8,
    "rope_theta": 100000.0,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("mlp_bias", False)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim, interleaved=True),
        attention=attention_of(keys),
    )


FAMILY = Family("helium", ("helium",), "Helium 1", configure, own_types_only=True)
