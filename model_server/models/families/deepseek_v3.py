"""DeepSeek-V3, R1 and Kimi K2: latent attention; some dense layers, then routed and shared experts.

Kimi K2.5 and K2.6 also see, by MoonViT.

Source: DeepSeek-AI 2024 (arXiv:2412.19437); names and config keys are those of Hugging Face's
`DeepseekV3ForCausalLM`. The multi-token-prediction layer after the last may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, first_sparse, routed_ffw
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.media.media_recipe import encoders
from model_server.models.media.moonvit import MOONVIT, kimi_vision
from model_server.models.recipe import Family, Recipe

# Of Kimi K2.5: what its images become in a prompt, which templates write
_UNUSED = ignored(
    "ignore_index",
    "use_unified_vision_chunk",
    "video_placeholder",
    "vision_end_token_id",
    "vision_start_token_id",
)
KEYS = KnownKeys(
    "deepseek_v3", (*LATENT, *ROUTED, *MOONVIT, "rope_interleave"), {**LATENT_OFF, **_UNUSED}
)
# Hugging Face's defaults.
_DEFAULTS = {
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "max_position_embeddings": 4096,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    recipe = latent_recipe(keys, values, first_sparse(keys), routed_ffw(keys))
    return replace(recipe, media=encoders(kimi_vision(keys, values, recipe.embed)))


FAMILY = Family(
    "deepseek_v3",
    ("deepseek_v3", "kimi_k2", "kimi_k25"),
    "DeepSeek-V3, DeepSeek-R1, Kimi K2, Kimi K2.5, Kimi K2.6",
    configure,
)
