"""Command R7B, Command A: Command R with windows, and no positions in layers that see everything.

Source: Cohere 2025 (arXiv:2504.00698); names and config keys are those of Hugging Face's
`Cohere2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.dense.cohere import (
    COMPUTED,
    DEFAULTS,
    OFF,
    context_of,
    interleaved_rope,
    parallel_recipe,
)
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "cohere2",
    (*COMPUTED, "layer_types", "sliding_window", "sliding_window_pattern"),
    {
        **OFF,
        **ignored("_sliding_window_pattern"),  # a note beside layer_types
        "order_of_interleaved_layers": one_of("local_attn_first"),
    },
)
_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 4}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS | _WINDOWS)
    keys.only("use_qk_norm", False)
    shape = attention_shape(keys)
    rope, pattern = interleaved_rope(keys, shape), keys.whole("sliding_window_pattern")
    windows = windows_of(
        keys, keys.whole("sliding_window"), lambda index: (index + 1) % pattern != 0
    )
    return parallel_recipe(
        keys,
        serving(values, context_of(keys)),
        shapes=[replace(shape, window=window) for window in windows],
        ropes=[rope if window else None for window in windows],
    )


FAMILY = Family("cohere2", ("cohere2",), "Command R7B, Command A", configure)
