"""GLM-5, within the tokens that its sparse attention sees: there it is dense, as in DeepSeek-V3.

Source: Z.ai 2026, "GLM-5"; names and config keys are those of Hugging Face's
`GlmMoeDsaForCausalLM`. A query attends to the `index_topk` tokens that score best by a second
cached key, which some layers take from others: to all, in a context of no more. The keys are not
built, so that is the longest context. Multi-token-prediction layers are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.deepseek_v3 import (
    LATENT,
    LATENT_OFF,
    ROUTED,
    latent_recipe,
    routed_ffw,
)
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.known_keys import KnownKeys, all_in, ignored, one_of
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "glm_moe_dsa",
    (*LATENT, *ROUTED, "index_topk", "mlp_layer_types"),
    # How tokens are chosen, where not all are.
    {
        **LATENT_OFF,
        **ignored("index_head_dim", "index_n_heads", "index_skip_topk_offset", "index_topk_freq"),
        **ignored("index_topk_pattern", "indexer_rope_interleave", "indexer_types"),
        "layer_types": all_in("indexed_attention"),
        "rope_interleave": one_of(True),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 3,
    "index_topk": 2048,
    "max_position_embeddings": 202752,
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "rms_norm_eps": 1e-5,
    "topk_group": 1,
    "v_head_dim": 256,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    seen, sparse = keys.whole("index_topk"), listed_sparse(keys)
    indexers = tuple(f"model.layers.{index}.self_attn.indexer." for index in range(len(sparse)))
    recipe = latent_recipe(
        keys,
        values,
        sparse,
        routed_ffw(keys),
        context=min(keys.whole("max_position_embeddings"), seen),
        unused=indexers,
    )
    note = f"its context ends at {seen} tokens: beyond, its attention is sparse, which is not built"
    return replace(recipe, note=note)


FAMILY = Family(
    "glm_moe_dsa", ("glm_moe_dsa",), "GLM-5 (within 2048 tokens)", configure, own_types_only=True
)
