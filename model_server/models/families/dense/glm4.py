"""GLM-4-0414, GLM-Z1: GLM with two more norms in each layer, after attention and feed-forward.

Source: GLM Team 2025 (arXiv:2406.12793 and "GLM-4-0414 Series"); names and config keys are those of
Hugging Face's `Glm4ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, rms_norms
from model_server.models.families.dense.glm import COMPUTED, DEFAULTS, attention_of, half_rope
from model_server.models.families.llama import attention_shape
from model_server.models.families.phi3 import fused_ffw
from model_server.models.known_keys import DECODER_OFF, KnownKeys
from model_server.models.layers.pre_norm import SandwichNormLayer
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys("glm4", COMPUTED, DECODER_OFF)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    shape, norm = attention_shape(keys), rms_norms(keys)
    attention, ffw = attention_of(keys), fused_ffw(keys)

    def layer(index: int, form: WeightForm) -> SandwichNormLayer:
        prefix = f"model.layers.{index}"
        return SandwichNormLayer(
            norm(f"{prefix}.input_layernorm"),
            attention(prefix, shape, form),
            norm(f"{prefix}.post_self_attn_layernorm"),
            norm(f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            norm(f"{prefix}.post_mlp_layernorm"),
        )

    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[half_rope(keys, shape)] * keys.whole("num_hidden_layers"),
        layer=layer,
    )


FAMILY = Family("glm4", ("glm4",), "GLM-4-0414, GLM-Z1", configure)
