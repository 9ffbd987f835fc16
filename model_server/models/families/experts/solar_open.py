"""Solar Open: Llama's attention, and DeepSeek-V3's experts in every layer.

Source: Upstage 2026, "Solar Open"; names and config keys are those of Hugging Face's
`SolarOpenForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.dense.glm import attention_of
from model_server.models.families.experts.mlp_layers import routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import partial_rope
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "solar_open",
    (*DECODER, *ROUTED, "attention_bias", "partial_rotary_factor"),
    # Of GLM-4.5, whose code it was made from; no layer is without experts.
    {**DECODER_OFF, "use_qk_norm": one_of(False), **ignored("first_k_dense_replace")},
)
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1280,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.0,
}
_BASE = {"rope_theta": 1e6}  # if config.json has no rope settings


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    settings = dict(config or {}).get("rope_parameters")
    keys = ConfigKeys(config, KEYS, _DEFAULTS if settings else _DEFAULTS | _BASE)
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    return routed_recipe(
        keys,
        values,
        shapes=[shape] * layers,
        ropes=[partial_rope(keys, shape.head_dim, share=1.0)] * layers,
        attention=attention_of(keys),
        sparse=[True] * layers,
        routed=routed_ffw(keys),
    )


FAMILY = Family("solar_open", ("solar_open",), "Solar Open", configure, own_types_only=True)
