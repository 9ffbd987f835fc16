"""DeepSeek-V3, R1 and Kimi K2: latent attention; some dense layers, then routed and shared experts.

Source: DeepSeek-AI 2024 (arXiv:2412.19437); names and config keys are those of Hugging Face's
`DeepseekV3ForCausalLM`. The multi-token-prediction layer after the last may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, first_sparse, routed_ffw
from model_server.models.known_keys import KnownKeys
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys("deepseek_v3", (*LATENT, *ROUTED, "rope_interleave"), LATENT_OFF)
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
    return latent_recipe(keys, values, first_sparse(keys), routed_ffw(keys))


FAMILY = Family(
    "deepseek_v3",
    ("deepseek_v3", "kimi_k2"),
    "DeepSeek-V3, DeepSeek-R1, Kimi K2",
    configure,
)
