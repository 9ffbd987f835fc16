"""GLM-4.5, GLM-4.6: half of each head rotates; routed and shared experts as in DeepSeek-V3.

Source: Z.ai 2025 (arXiv:2508.06471); names and config keys are those of Hugging Face's
`Glm4MoeForCausalLM`. The multi-token-prediction layer after the last may
draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    decoder_recipe,
    gated_ffw,
    norm_of,
)
from model_server.models.families.latent_recipe import spare_layers
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import appended_head
from model_server.models.families.ropes import partial_rope
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "glm4_moe",
    (*DECODER, *ROUTED, "attention_bias", "partial_rotary_factor", "use_qk_norm"),
    DECODER_OFF,
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.0,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    layers, shape = keys.whole("num_hidden_layers"), attention_shape(keys)
    first_sparse = keys.whole("first_k_dense_replace", least=0)
    attention, dense, routed = _attention(keys), gated_ffw(keys), routed_ffw(keys)
    rope = partial_rope(keys, shape.head_dim, share=0.5)

    def made(prefix: str, ffw: BuildFfw, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
        )

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        return made(f"model.layers.{index}", dense if index < first_sparse else routed, form)

    def drafting(prefix: str, form: WeightForm) -> PreNormLayer:
        return made(prefix, routed, form)

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope] * layers,
        layer=layer,
    )
    own_head = appended_head(keys, layers, drafting, rope)
    return replace(recipe, unused=spare_layers(keys, layers), own_head=own_head)


def _attention(keys: ConfigKeys) -> BuildAttention:
    biased, normed = keys.flag("attention_bias"), keys.flag("use_qk_norm")
    epsilon = keys.number("rms_norm_eps")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(name, biased=biased)
        if not normed:
            return Attention(shape, sources, form)
        q_norm, k_norm = (
            RmsNorm(shape.head_dim, (f"{name}.{part}.weight",), epsilon=epsilon)
            for part in ("q_norm", "k_norm")
        )
        return Attention(shape, sources, form, q_norm=q_norm, k_norm=k_norm)

    return build


FAMILY = Family(
    "glm4_moe", ("glm4_moe",), "GLM-4.5, GLM-4.5-Air, GLM-4.6", configure, own_types_only=True
)
