"""Granite Swash with experts: windows, attention sinks, and a rope base for each layer.

Source: IBM 2026, "Granite Swash"; names and config keys are those of Hugging Face's
`GraniteMoeSWAForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.dense.granite_swa import DEFAULTS, WINDOWED, windowed_recipe
from model_server.models.families.experts.granitemoe import routed_ffw, shared_ffw
from model_server.models.known_keys import DECODER_OFF, KnownKeys
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "granitemoe_swa",
    (*WINDOWED, "num_experts_per_tok", "num_local_experts", "shared_intermediate_size"),
    DECODER_OFF,
)
_DEFAULTS = {
    **DEFAULTS,
    "max_position_embeddings": 2048,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_EXPERTS = ("experts.gate_up_proj", "experts.down_proj", "router.weight")


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    return windowed_recipe(keys, values, routed_ffw(keys, shared_ffw(keys), _EXPERTS))


FAMILY = Family(
    "granitemoe_swa",
    ("granitemoe_swa",),
    "Granite Swash (experts)",
    configure,
    own_types_only=True,
)
