"""Youtu-LLM: latent attention as in DeepSeek-V3, and no experts.

Source: Tencent 2025, "Youtu-LLM"; names and config keys are those of Hugging Face's
`YoutuForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "youtu",
    (*LATENT, "num_nextn_predict_layers", "rope_interleave"),
    {**LATENT_OFF, **ignored("embedding_initializer_range")},
)
_DEFAULTS = {
    "max_position_embeddings": 131072,
    "q_lora_rank": 1536,
    "tie_word_embeddings": True,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("num_nextn_predict_layers", 0)
    layers = keys.whole("num_hidden_layers")
    return latent_recipe(keys, values, [False] * layers, gated_ffw(keys))


FAMILY = Family("youtu", ("youtu",), "Youtu-LLM", configure, own_types_only=True)
