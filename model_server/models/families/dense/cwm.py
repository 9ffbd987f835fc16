"""Code World Model: Llama 3 with windows in most layers.

Source: Meta 2025 (arXiv:2510.02387); names and config keys are those of Hugging Face's
`CwmForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys("cwm", (*DECODER, "layer_types", "mlp_bias", "sliding_window"), DECODER_OFF)
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "sliding_window": 8192,
}
_ROPE = {
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 1e6,
    "rope_type": "llama3",
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, window = attention_shape(keys), keys.whole_or_none("sliding_window")
    windows = windows_of(keys, window, lambda index: index % 4 != 0)
    given = settings_of(keys) or _ROPE
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=its) for its in windows],
        rope=rope_of(keys.all | {"rope_parameters": given}, shape.head_dim),
        ffw=gated_ffw(keys, biased=keys.flag("mlp_bias")),
    )


FAMILY = Family("cwm", ("cwm",), "Code World Model", configure, own_types_only=True)
