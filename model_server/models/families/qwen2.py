"""Qwen2, Qwen2.5: Llama with biased queries, keys and values; the last layers may slide.

Source: Yang et al. 2024 (arXiv:2407.10671, arXiv:2412.15115); names and config keys are those of
Hugging Face's `Qwen2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

WINDOWS = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
KEYS = KnownKeys("qwen2", (*DECODER, *WINDOWS), DECODER_OFF)
_DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shapes = layer_shapes(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=shapes,
        rope=rope_of(keys.all, shapes[0].head_dim),
        attention=qwen2_attention,
    )


def layer_shapes(keys: ConfigKeys) -> list[AttentionShape]:
    shape, first = attention_shape(keys), keys.whole("max_window_layers", least=0)
    # Most checkpoints set sliding_window without using it.
    window = keys.whole_or_none("sliding_window") if keys.flag("use_sliding_window") else None
    windows = windows_of(keys, window, lambda index: index >= first)
    return [replace(shape, window=window) for window in windows]


def qwen2_attention(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
    sources = AttentionSources.hugging_face(f"{prefix}.self_attn", biased=True)
    return Attention(shape, sources, form)


FAMILY = Family("qwen2", ("qwen2",), "Qwen2, Qwen2.5", configure)
