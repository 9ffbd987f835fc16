"""Qwen3-Omni: Qwen3-VL with experts, beside an encoder of sounds.

The part that answers, which its config calls the thinker; the one that speaks is not served.
Source: Xu et al. 2025 (arXiv:2509.17765); names and config keys are those of Hugging Face's
`Qwen3OmniMoeForConditionalGeneration` and `Qwen3OmniMoeThinkerForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.qwen3_moe import routed_ffw
from model_server.models.families.qwen_vl.qwen2_5_omni import OMNI, OMNI_HARMLESS, PER_SECOND
from model_server.models.families.qwen_vl.qwen2_vl import MERGER
from model_server.models.families.qwen_vl.qwen3_vl import deep_tower, vision
from model_server.models.families.qwen_vl.qwen3_vl_moe import text_recipe
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.heard_videos import Weaver, by_time, with_sounds
from model_server.models.media.qwen.sounds import omni3_sounds, with_files_apart
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.vision_encoder import QWEN2, QWEN3, Timing, evenly
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "qwen3_omni_moe",
    (
        *DECODER,
        *OMNI,
        "attention_bias",
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
    ),
    {
        **DECODER_OFF,
        **OMNI_HARMLESS,
        # What transformers does not read; queries and keys are always normalised.
        **ignored("max_window_layers", "shared_expert_intermediate_size", "sliding_window"),
        "experts_apart": one_of(True),  # of GGUF files, whose experts are given as published
        "use_qk_norm": one_of(True),
        "use_sliding_window": one_of(False),
    },
)
_DEFAULTS = {
    "audio_token_id": 151646,
    "decoder_sparse_step": 1,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    PER_SECOND: 25,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(None if config is None else with_files_apart(config), KEYS, _DEFAULTS)
    recipe = text_recipe(keys, values, routed_ffw(keys), 1e6)
    seen = vision(keys, values, recipe.embed, _KIND, _tower)
    sounds = omni3_sounds(keys, "<|audio_pad|>", recipe.embed)
    return replace(recipe, media=encoders(with_sounds(seen, sounds, _WEAVER), sounds))


def _tower(keys: ConfigKeys) -> TowerShape:
    return deep_tower(keys, MERGER, "merger_list")


def _timing(keys: ConfigKeys) -> Timing:
    return evenly(keys.whole(PER_SECOND), 1.0)


# Videos are prepared as for Qwen2-VL, and what is usual is as for Qwen3-VL.
_KIND = replace(QWEN3, timing=_timing, processor=QWEN2.processor, together=QWEN2.together)

_WEAVER = Weaver(turns=by_time, marks=("<|audio_start|>", "<|audio_end|>"), twins=False)

FAMILY = Family(
    "qwen3_omni_moe",
    ("qwen3_omni_moe_text", "qwen3_omni_moe", "qwen3_omni_moe_thinker"),
    "Qwen3-Omni (experts)",
    configure,
    own_types_only=True,
)
