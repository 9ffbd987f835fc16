"""dots.llm1: Qwen3's attention and DeepSeek-V3's experts.

Source: rednote 2025 (arXiv:2506.05767); names and config keys are those of Hugging Face's
`Dots1ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.experts.mlp_layers import routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.sigmoid_experts import ROUTED, first_sparse, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe

KEYS = KnownKeys(
    "dots1",
    (*DECODER, *ROUTED, "attention_bias", "layer_types", "max_window_layers", "sliding_window"),
    DECODER_OFF,
)
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "max_window_layers": 62,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "sliding_window": 4096,
}
# Published files name the kind of balancing where others name the squashing of scores.
_BALANCED = {"scoring_func": "noaux_tc"}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = dict(config or {})
    if given.items() >= _BALANCED.items():
        del given["scoring_func"]
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    shape, first = attention_shape(keys), keys.whole("max_window_layers", least=0)
    windows = windows_of(keys, keys.whole_or_none("sliding_window"), lambda index: index >= first)
    return routed_recipe(
        keys,
        values,
        shapes=[replace(shape, window=window) for window in windows],
        ropes=[rope_of(keys.all, shape.head_dim)] * len(windows),
        attention=normed_attention(keys),
        sparse=first_sparse(keys),
        routed=routed_ffw(keys),
    )


FAMILY = Family("dots1", ("dots1",), "dots.llm1", configure, own_types_only=True)
