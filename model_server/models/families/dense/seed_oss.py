"""Seed-OSS: Llama with biased queries, keys and values, and heads of 128.

Source: ByteDance Seed 2025, "Seed-OSS Open-Source Models"; names and config keys are those of
Hugging Face's `SeedOssForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "seed_oss",
    (*DECODER, "attention_bias", "attention_out_bias", "mlp_bias"),
    {**DECODER_OFF, **ignored("residual_dropout")},  # in training only
)
_DEFAULTS = {"attention_bias": True, "head_dim": 128, "max_position_embeddings": 524288}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        attention=biased_attention(keys, out_bias="attention_out_bias"),
        ffw=gated_ffw(keys, biased=keys.flag("mlp_bias")),
    )


FAMILY = Family("seed_oss", ("seed_oss",), "Seed-OSS", configure)
