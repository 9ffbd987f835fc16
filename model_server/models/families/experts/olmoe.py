"""OLMoE: queries and keys normed over all heads, and routed experts in every layer.

Source: Muennighoff et al. 2024 (arXiv:2409.02060); names and config keys are those of Hugging
Face's `OlmoeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.olmo2 import all_heads_normed
from model_server.models.families.qwen3_moe import routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "olmoe",
    (*DECODER, "attention_bias", "norm_topk_prob", "num_experts", "num_experts_per_tok"),
    {**DECODER_OFF, "clip_qkv": one_of(None)},
)
_DEFAULTS = {
    "max_position_embeddings": 4096,
    "norm_topk_prob": False,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-5,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        attention=all_heads_normed(keys),
        ffw=routed_ffw(keys, "intermediate_size"),
    )


FAMILY = Family("olmoe", ("olmoe",), "OLMoE", configure, own_types_only=True)
