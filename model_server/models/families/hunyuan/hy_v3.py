"""Hy3: normed heads, and experts chosen by sigmoids beside shared ones in all but the first layer.

Source: Tencent 2026, "Hy3"; names and config keys are those of Hugging Face's `HYV3ForCausalLM`.
The multi-token-prediction layer after the last may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildAttention, BuildFfw
from model_server.models.families.experts.mlp_layers import listed_sparse, routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import HeadNames, counted_head, drafting_layer
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import RmsNorm
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import GroupedSigmoidChoice, Router, checked_count
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "hy_v3",
    (
        *DECODER,
        "attention_bias",
        "first_k_dense_replace",
        "mlp_layer_types",
        "moe_intermediate_size",
        "num_experts",
        "num_experts_per_tok",
        "num_nextn_predict_layers",
        "num_shared_experts",
        "router_scaling_factor",
    ),
    # Numbers between layers are float32 here.
    {**DECODER_OFF, **ignored("enable_moe_fp32_combine"), "mlp_bias": one_of(False)},
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-5,
    "router_scaling_factor": 2.826,
}
_BASE = {"rope_theta": 11158840.0}  # if config.json has no rope settings


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    settings = dict(config or {}).get("rope_parameters")
    keys = ConfigKeys(config, KEYS, _DEFAULTS if settings else _DEFAULTS | _BASE)
    shape, sparse = attention_shape(keys), listed_sparse(keys)
    rope, attention, routed = (
        rope_of(keys.all, shape.head_dim),
        _attention(keys),
        _routed_ffw(keys),
    )
    recipe = routed_recipe(
        keys,
        values,
        shapes=[shape] * len(sparse),
        ropes=[rope] * len(sparse),
        attention=attention,
        sparse=sparse,
        routed=routed,
    )
    names = HeadNames.appended(len(sparse), "final_layernorm")
    drafting = drafting_layer(keys, attention, shape, routed)
    return replace(recipe, own_head=counted_head(keys, names, drafting, rope))


def _attention(keys: ConfigKeys) -> BuildAttention:
    biased, epsilon = keys.flag("attention_bias"), keys.number("rms_norm_eps")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=biased)
        q_norm, k_norm = (
            RmsNorm(shape.head_dim, (f"{name}.{part}.weight",), epsilon=epsilon)
            for part in ("q_norm", "k_norm")
        )
        return Attention(shape, sources, form, q_norm=q_norm, k_norm=k_norm)

    return build


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size")
    experts, shared = keys.whole("num_experts"), keys.whole("num_shared_experts")
    scale, activation = (
        keys.number("router_scaling_factor"),
        activation_of(keys.get("hidden_act", "silu")),
    )
    choice = GroupedSigmoidChoice(checked_count(keys, experts), 1, 1, normalised=True, scale=scale)

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.mlp"
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="gate_proj", up="up_proj", down="down_proj"
        )
        always = GatedFeedForward.hugging_face(
            embed, shared * ffw, f"{name}.shared_mlp", activation=activation, form=form
        )
        bias = (f"{name}.expert_bias",)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.router.gate.weight",), bias=bias),
            Experts(embed, ffw, sources, activation=activation, form=form),
            always,
        )

    return build


FAMILY = Family("hy_v3", ("hy_v3",), "Hy3", configure, own_types_only=True)
