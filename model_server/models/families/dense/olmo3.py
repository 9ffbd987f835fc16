"""OLMo 3: OLMo 2 with windows in three of four layers, and stretched positions only in the others.

Source: Ettinger et al. 2025, "Olmo 3" (arXiv:2512.13961); names and config keys are those of
Hugging Face's `Olmo3ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.olmo2 import post_norm_recipe
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind, settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import Rope
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "olmo3", (*DECODER, "attention_bias", "layer_types", "sliding_window"), DECODER_OFF
)
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "sliding_window": 4096,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, ropes = attention_shape(keys), _ropes(keys)
    windows = windows_of(keys, keys.whole("sliding_window"), lambda index: (index + 1) % 4 != 0)
    return post_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window) for window in windows],
        ropes=[ropes[SLIDING if window else FULL] for window in windows],
    )


def _ropes(keys: ConfigKeys) -> dict[str, Rope]:
    given, base = settings_of(keys), keys.number("rope_theta")
    if not {FULL, SLIDING} & given.keys():  # old keys: only full attention is stretched
        given = {FULL: given}
    head_dim = attention_shape(keys).head_dim
    return ropes_by_kind(keys, head_dim, given, {FULL: base, SLIDING: base})


FAMILY = Family("olmo3", ("olmo3",), "OLMo 3", configure)
