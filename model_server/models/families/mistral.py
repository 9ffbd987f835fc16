"""Mistral: Llama with a sliding window in every layer.

Source: Jiang et al. 2023 (arXiv:2310.06825); names and config keys are those of Hugging Face's
`MistralForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Recipe, serving

KEYS = KnownKeys("mistral", (*DECODER, "layer_types", "sliding_window"), DECODER_OFF)
# A missing sliding_window means the first model's; null means none.
_DEFAULTS = {"sliding_window": 4096, "max_position_embeddings": 131072}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = attention_shape(keys)
    windows = windows_of(keys, keys.whole_or_none("sliding_window"), lambda index: True)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window) for window in windows],
        rope=rope_of(keys.all, shape.head_dim),
    )
