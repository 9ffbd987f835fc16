"""Flint: a sink in each head, windows in most layers, experts chosen by sigmoids with a shared one.

Layers that see everything do not rotate.
Source: Recursive Superintelligence 2026, "Flint"; names and config keys are those of Hugging
Face's `FlintForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.experts.mlp_layers import routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.qwen3_moe import sparse_layers
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import GroupedSigmoidChoice, checked_count
from model_server.models.recipe import Family, Recipe

_NAMES = {"num_experts": "n_routed_experts", "num_local_experts": "n_routed_experts"}
KEYS = KnownKeys(
    "flint",
    (
        *DECODER,
        *ROUTED,
        "attention_bias",
        "decoder_sparse_step",
        "layer_types",
        "mlp_only_layers",
        "shared_expert_intermediate_size",
        "sliding_window",
    ),
    DECODER_OFF,
)
_DEFAULTS = {
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [0, 1],
    "moe_intermediate_size": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 4,
    "shared_expert_intermediate_size": 1024,
    "sliding_window": 513,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {_NAMES.get(key, key): value for key, value in (config or {}).items()}
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    shape, last = attention_shape(keys), keys.whole("num_hidden_layers") - 1

    def slides(index: int) -> bool:
        return not (index < 2 or index % 4 == 1 or index == last)

    windows = windows_of(keys, keys.whole("sliding_window"), slides)
    rope, experts = rope_of(keys.all, shape.head_dim), keys.whole("n_routed_experts")
    choice = GroupedSigmoidChoice(
        checked_count(keys, experts), 1, 1, keys.flag("norm_topk_prob", True), scale=1.0
    )
    return routed_recipe(
        keys,
        values,
        shapes=[replace(shape, window=window) for window in windows],
        ropes=[None if window is None else rope for window in windows],
        attention=normed_attention(keys, sinks="softmax_offset"),
        sparse=sparse_layers(keys),
        routed=routed_ffw(
            keys,
            choice,
            names=RoutedNames(bias=None, shared="shared_expert"),
            shared=keys.whole("shared_expert_intermediate_size"),
        ),
    )


FAMILY = Family("flint", ("flint",), "Flint", configure, own_types_only=True)
