"""DeepSeek-V2, V2-Lite and Coder-V2: V3's latent attention, experts chosen by probability.

Source: DeepSeek-AI 2024 (arXiv:2405.04434); names and config keys are those of Hugging Face's
`DeepseekV2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import (
    ROUTED,
    RoutedNames,
    first_sparse,
    routed_ffw,
)
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.routing import GroupedSoftmaxChoice, checked_count
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

KEYS = KnownKeys("deepseek_v2", (*LATENT, *ROUTED), LATENT_OFF)
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "q_lora_rank": 1536,
    "routed_scaling_factor": 1.0,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    return latent_recipe(
        keys,
        values,
        first_sparse(keys),
        routed_ffw(keys, _choice(keys), names=RoutedNames(bias=None)),
    )


def _choice(keys: ConfigKeys) -> GroupedSoftmaxChoice:
    """Read how experts are chosen. Raises CheckpointError."""
    keys.only("scoring_func", "softmax")
    keys.only("norm_topk_prob", False)
    grouped = keys.only("topk_method", "greedy", "group_limited_greedy") != "greedy"
    experts = keys.whole("n_routed_experts")
    groups, kept = (keys.whole("n_group", 1), keys.whole("topk_group", 1)) if grouped else (1, 1)
    if experts % groups or kept > groups:
        raise CheckpointError(
            f"config.json has n_group = {groups} and topk_group = {kept} for {experts} experts; "
            "groups must be of equal size, and topk_group at most n_group"
        )
    count = checked_count(keys, experts // groups * kept)
    return GroupedSoftmaxChoice(count, groups, kept, keys.number("routed_scaling_factor"))


FAMILY = Family(
    "deepseek_v2",
    ("deepseek_v2",),
    "DeepSeek-V2, DeepSeek-V2-Lite, DeepSeek-Coder-V2",
    configure,
    own_types_only=True,
)
