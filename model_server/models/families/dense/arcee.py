"""Arcee AFM: Llama with a feed-forward of two matrices and a squared ReLU.

Source: Arcee AI 2025, "AFM-4.5B", with the activation of So et al. 2021 (arXiv:2109.08668); names
and config keys are those of Hugging Face's `ArceeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import plain_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys("arcee", (*DECODER, "attention_bias", "mlp_bias"), DECODER_OFF)
_DEFAULTS = {"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        attention=biased_attention(keys),
        ffw=plain_ffw(keys, "up_proj", "down_proj", biased=keys.flag("mlp_bias")),
    )


FAMILY = Family("arcee", ("arcee",), "Arcee AFM", configure)
