"""Qwen3.5 with experts: gated delta networks, every fourth layer gated attention; a shared expert.

Source: Qwen Team 2026, "Qwen3.5"; Yang et al. 2024 (arXiv:2412.06464); names and config keys are
those of Hugging Face's `Qwen3_5MoeForCausalLM`. The multi-token-prediction layer may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.experts.qwen2_moe import shared_ffw
from model_server.models.families.qwen3_moe import routed_ffw
from model_server.models.families.recurrent.delta_recipe import DELTA, DELTA_DEFAULTS
from model_server.models.families.recurrent.qwen3_5 import OTHER_PARTS, recipe_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.media.qwen.vision_encoder import OUTER
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "qwen3_5_moe",
    (
        *DECODER,
        *DELTA,
        *OUTER,
        "experts_apart",  # not of config.json: see checkpoints/opening.py
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "shared_expert_intermediate_size",
    ),
    {
        **DECODER_OFF,
        **OTHER_PARTS,
        **ignored("intermediate_size"),
        "decoder_sparse_step": one_of(1),
        "mlp_only_layers": one_of([]),
    },
)
_DEFAULTS = {
    **DELTA_DEFAULTS,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "shared_expert_intermediate_size": 512,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    together = not keys.flag("experts_apart")
    return recipe_of(keys, values, routed_ffw(keys, shared=shared_ffw(keys), together=together))


FAMILY = Family(
    "qwen3_5_moe",
    ("qwen3_5_moe_text", "qwen3_5_moe"),
    "Qwen3.5 (experts)",
    configure,
    own_types_only=True,
)
