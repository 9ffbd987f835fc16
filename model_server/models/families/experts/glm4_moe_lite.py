"""GLM-4.7-Flash: DeepSeek-V3 in GLM's sizes; config.json lists the layers with experts.

Source: Z.ai 2026, "GLM-4.7"; names and config keys are those of Hugging Face's
`Glm4MoeLiteForCausalLM`. The multi-token-prediction layer may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, routed_ffw
from model_server.models.known_keys import KnownKeys, one_of
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "glm4_moe_lite",
    (*LATENT, *ROUTED, "mlp_layer_types", "rope_interleave"),
    {**LATENT_OFF, "partial_rotary_factor": one_of(1.0)},
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.8,
    "topk_group": 1,
    "v_head_dim": 256,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    return latent_recipe(keys, values, listed_sparse(keys), routed_ffw(keys))


FAMILY = Family(
    "glm4_moe_lite", ("glm4_moe_lite",), "GLM-4.7-Flash", configure, own_types_only=True
)
