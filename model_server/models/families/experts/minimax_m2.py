"""MiniMax-M2: queries and keys normed over all heads, part of each head rotates, routed experts.

MiniMax-01 and -M1 have recurrent layers and are another family.
Source: MiniMax 2025, "MiniMax-M2"; names and config keys are those of Hugging Face's
`MiniMaxM2ForCausalLM`. Multi-token-prediction modules are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.olmo2 import all_heads_normed
from model_server.models.families.ropes import partial_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, all_in, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.routing import GroupedSigmoidChoice, Router, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "minimax_m2",
    (
        *DECODER,
        "attention_bias",
        "num_experts_per_tok",
        "num_local_experts",
        "num_mtp_modules",
        "partial_rotary_factor",
        "rotary_dim",
    ),
    {
        **DECODER_OFF,
        # Sizes of parts that the model has not, and of the modules that draft tokens.
        **ignored("mlp_intermediate_size", "mtp_transformer_layers", "shared_moe_mode", "use_mtp"),
        "attn_type_list": all_in(1),
        "layernorm_full_attention_beta": one_of(1.0),
        "layernorm_linear_attention_beta": one_of(1.0),
        "layernorm_mlp_beta": one_of(1.0),
        "qk_norm_type": one_of("per_layer"),
        "scoring_func": one_of("sigmoid"),
        "shared_intermediate_size": one_of(0),
        "use_qk_norm": one_of(True),
        "use_routing_bias": one_of(True),
    },
)
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 196608,
    "num_experts_per_tok": 8,
    "num_local_experts": 256,
    "rms_norm_eps": 1e-6,
}
_BASE = {"rope_theta": 5000000.0}  # if config.json has no rope settings


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    settings = dict(config or {}).get("rope_parameters")
    keys = ConfigKeys(config, KEYS, _DEFAULTS if settings else _DEFAULTS | _BASE)
    keys.only("attention_bias", False)
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    rotated = keys.whole_or_none("rotary_dim") or shape.head_dim
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * layers,
        rope=partial_rope(keys, shape.head_dim, share=rotated / shape.head_dim),
        attention=all_heads_normed(keys),
        ffw=_routed_ffw(keys),
    )
    more = keys.whole("num_mtp_modules", 0, least=0)
    unused = tuple(f"model.layers.{index}." for index in range(layers, layers + more))
    return replace(recipe, unused=unused)


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    experts = keys.whole("num_local_experts")
    choice = GroupedSigmoidChoice(
        checked_count(keys, experts), groups=1, kept=1, normalised=True, scale=1.0
    )
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.block_sparse_moe"
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="w1", up="w3", down="w2"
        )
        bias = (f"{name}.e_score_correction_bias",)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.weight",), bias=bias),
            Experts(embed, ffw, sources, activation=activation, form=form),
        )

    return build


FAMILY = Family("minimax_m2", ("minimax_m2",), "MiniMax-M2", configure, own_types_only=True)
