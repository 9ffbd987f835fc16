"""K-EXAONE: EXAONE 4's attention between norms as in Llama, and DeepSeek-V3's experts.

Source: LG AI Research 2025, "K-EXAONE"; names and config keys are those of Hugging Face's
`ExaoneMoeForCausalLM`. Layers that see everything do not rotate. Modules that draft tokens are
skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.experts.mlp_layers import listed_sparse, routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe

# DeepSeek's names of these keys
_NAMES = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
KEYS = KnownKeys(
    "exaone_moe",
    (
        *DECODER,
        *ROUTED,
        "attention_bias",
        "layer_types",
        "mlp_layer_types",
        "sliding_window",
        "sliding_window_pattern",
    ),
    # A list that says the same in other words; a pattern in letters is a note beside layer_types.
    {**DECODER_OFF, **ignored("is_moe_layer", "num_mtp_layers")},
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1024,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {_NAMES.get(key, key): value for key, value in (config or {}).items()}
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    shape, window = attention_shape(keys), keys.whole_or_none("sliding_window")
    slides = sliding_layers(
        keys, lambda at: window is not None and (at + 1) % keys.whole("sliding_window_pattern") != 0
    )
    rope = rope_of(keys.all, shape.head_dim)
    recipe = routed_recipe(
        keys,
        values,
        shapes=[replace(shape, window=window if slide else None) for slide in slides],
        ropes=[rope if slide or window is None else None for slide in slides],
        attention=normed_attention(keys),
        sparse=listed_sparse(keys),
        routed=routed_ffw(keys, bias="e_score_correction_bias"),
    )
    return replace(recipe, unused=(*recipe.unused, "mtp."))


FAMILY = Family("exaone_moe", ("exaone_moe",), "K-EXAONE", configure, own_types_only=True)
