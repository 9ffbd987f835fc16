"""K-EXAONE: EXAONE 4's attention between norms as in Llama, and DeepSeek-V3's experts.

Source: LG AI Research 2025, "K-EXAONE"; names and config keys are those of Hugging Face's
`ExaoneMoeForCausalLM`. Layers that see everything do not rotate. A layer without experts may
draft; where `mtp_layer_types` does not say what it sees, it is taken to see what the first does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, slides_as, sliding_layers
from model_server.models.families.decoder_recipe import gated_ffw
from model_server.models.families.experts.mlp_layers import listed_sparse, routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import QWEN, counted_head, drafting_layer
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe

# DeepSeek's names of these keys
_NAMES = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}
# How the layer that drafts was trained, and how often it follows itself
_OF_DRAFTS = (
    "mtp_loss_scaling_factor",
    "mtp_num_speculative_steps",
    "mtp_share_layers",
    "num_mtp_layers",
)
KEYS = KnownKeys(
    "exaone_moe",
    (
        *DECODER,
        *ROUTED,
        "attention_bias",
        "layer_types",
        "mlp_layer_types",
        "mtp_layer_types",
        "sliding_window",
        "sliding_window_pattern",
    ),
    # A list that says the same in other words; a pattern in letters is a note beside layer_types.
    {**DECODER_OFF, **ignored("is_moe_layer", *_OF_DRAFTS)},
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
    rope, attention = rope_of(keys.all, shape.head_dim), normed_attention(keys)

    def seen(slide: bool) -> tuple[AttentionShape, Rope | None]:
        turns = slide or window is None
        return replace(shape, window=window if slide else None), rope if turns else None

    recipe = routed_recipe(
        keys,
        values,
        shapes=[seen(slide)[0] for slide in slides],
        ropes=[seen(slide)[1] for slide in slides],
        attention=attention,
        sparse=listed_sparse(keys),
        routed=routed_ffw(keys, names=RoutedNames(bias="e_score_correction_bias")),
    )
    of_drafts, turning = seen((_drafts_slide(keys) or slides)[0])
    drafting = drafting_layer(keys, attention, of_drafts, gated_ffw(keys))
    head = counted_head(keys, QWEN, drafting, turning)
    return replace(recipe, unused=(*recipe.unused, "mtp."), own_head=head)


def _drafts_slide(keys: ConfigKeys) -> list[bool]:
    """One flag per layer that drafts; []: config.json does not say. Raises CheckpointError."""
    return [slides_as(keys, kind) for kind in keys.get("mtp_layer_types") or ()]


FAMILY = Family("exaone_moe", ("exaone_moe",), "K-EXAONE", configure, own_types_only=True)
