"""Trinity: windows in three layers of four, gates on what heads find, four norms, experts.

Layers that see everything do not rotate.
Source: Arcee AI 2025, "Trinity"; names and config keys are those of Hugging Face's
`AfmoeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import decoder_recipe, gated_ffw, rms_norms
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.sigmoid_experts import (
    ROUTED,
    RoutedNames,
    first_sparse,
    routed_ffw,
)
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.pre_norm import SandwichNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

# DeepSeek's names of these keys
_NAMES = {
    "num_dense_layers": "first_k_dense_replace",
    "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "route_scale": "routed_scaling_factor",
}
KEYS = KnownKeys(
    "afmoe",
    (
        *DECODER,
        *ROUTED,
        "attention_bias",
        "global_attn_every_n_layers",
        "layer_types",
        "mup_enabled",
        "sliding_window",
    ),
    {
        **DECODER_OFF,
        **ignored("load_balance_coeff", "use_grouped_mm"),
        "num_expert_groups": one_of(1),
        "num_limited_groups": one_of(1),
        "route_norm": one_of(True),
        "score_func": one_of("sigmoid"),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "global_attn_every_n_layers": 4,
    "head_dim": 128,
    "max_position_embeddings": 16384,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.0,
    "sliding_window": 1024,
}
_EXPERTS = RoutedNames(router="router.gate", bias="expert_bias")


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(
        {_NAMES.get(key, key): value for key, value in (config or {}).items()}, KEYS, _DEFAULTS
    )
    for key in ("n_group", "topk_group"):
        keys.only(key, 1)
    keys.only("norm_topk_prob", True)
    every, shape, norm = (
        keys.whole("global_attn_every_n_layers"),
        attention_shape(keys),
        rms_norms(keys),
    )
    windows = windows_of(keys, keys.whole("sliding_window"), lambda at: (at + 1) % every != 0)
    attention = normed_attention(keys, gate="gate_proj")
    sparse, dense, routed = first_sparse(keys), gated_ffw(keys), routed_ffw(keys, names=_EXPERTS)

    def layer(index: int, form: WeightForm) -> SandwichNormLayer:
        prefix = f"model.layers.{index}"
        return SandwichNormLayer(
            norm(f"{prefix}.input_layernorm"),
            attention(prefix, replace(shape, window=windows[index]), form),
            norm(f"{prefix}.post_attention_layernorm"),
            norm(f"{prefix}.pre_mlp_layernorm"),
            (routed if sparse[index] else dense)(prefix, form),
            norm(f"{prefix}.post_mlp_layernorm"),
        )

    rope, grown = rope_of(keys.all, shape.head_dim), keys.flag("mup_enabled")
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[None if window is None else rope for window in windows],
        layer=layer,
        windows=windows,
        embedding_scale=lambda form: shape.embed**0.5 if grown else 1.0,
    )


FAMILY = Family("afmoe", ("afmoe",), "Trinity", configure, own_types_only=True)
