"""GLM-4, GLM-Edge: Llama with biased queries, a fused feed-forward and half of each head rotated.

Source: GLM Team 2024 (arXiv:2406.12793); names and config keys are those of Hugging Face's
`GlmForCausalLM`, whose heads rotate neighbouring dimensions together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildAttention, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.phi3 import fused_ffw
from model_server.models.families.ropes import partial_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

COMPUTED = (*DECODER, "attention_bias", "partial_rotary_factor")
KEYS = KnownKeys("glm", COMPUTED, DECODER_OFF)
DEFAULTS = {
    "attention_bias": True,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1.5625e-07,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=half_rope(keys, shape),
        attention=attention_of(keys),
        ffw=fused_ffw(keys),
    )


def half_rope(keys: ConfigKeys, shape: AttentionShape) -> Rope:
    return partial_rope(keys, shape.head_dim, share=0.5, interleaved=True)


def attention_of(keys: ConfigKeys) -> BuildAttention:
    biased = keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        sources = AttentionSources.hugging_face(f"{prefix}.self_attn", biased=biased)
        return Attention(shape, sources, form)

    return build


FAMILY = Family("glm", ("glm",), "GLM-4-9B, GLM-Edge", configure)
