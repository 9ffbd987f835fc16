"""Sarvam 105B: DeepSeek-V3's layers with names of their own in config.json.

Source: Sarvam AI 2026, "Sarvam-105B"; names and config keys are those of Hugging Face's
`SarvamMLAConfig`, which the code of DeepSeek-V3 serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, first_sparse, routed_ffw
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.recipe import Family, Recipe

# DeepSeek's names of these keys
NAMES = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_mtp_layers": "num_nextn_predict_layers",
    "num_shared_experts": "n_shared_experts",
}
# What published files say of their experts and parts, as the reference computes it
OFF = {
    **ignored("output_dropout", "embedding_dropout"),
    "moe_router_enable_expert_bias": one_of(True),
    "score_function": one_of("sigmoid"),
    "use_bias": one_of(False),
    "use_qkv_bias": one_of(False),
}
KEYS = KnownKeys(
    "sarvam_mla",
    (*LATENT, *ROUTED, "rope_interleave"),
    {**LATENT_OFF, **OFF, **ignored("q_head_dim")},
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "max_position_embeddings": 4096,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "topk_group": 1,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {NAMES.get(key, key): value for key, value in (config or {}).items()}
    stretch = given.get("rope_scaling")
    if isinstance(stretch, Mapping) and "deepseek_yarn" in stretch.values():
        settings = {key: value for key, value in stretch.items() if key != "type"}
        given["rope_scaling"] = settings | {"rope_type": "yarn"}  # the same by another name
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    return latent_recipe(keys, values, first_sparse(keys), routed_ffw(keys))


FAMILY = Family("sarvam_mla", ("sarvam_mla",), "Sarvam 105B", configure, own_types_only=True)
