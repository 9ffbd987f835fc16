"""Qwen2, Qwen2.5, MiMo: Llama with biased queries, keys, values; the last layers may slide.

Source: Yang et al. 2024 (arXiv:2407.10671, arXiv:2412.15115); names and config keys are those of
Hugging Face's `Qwen2ForCausalLM`. Xiaomi 2025 (arXiv:2505.07608) adds a layer that may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import gated_ffw, norm_of, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import MIMO, own_head
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

WINDOWS = ("layer_types", "max_window_layers", "sliding_window", "use_sliding_window")
KEYS = KnownKeys(
    "qwen2",
    (*DECODER, *WINDOWS, "num_nextn_predict_layers"),
    {**DECODER_OFF, "attention_bias": one_of(True, False)},  # there are biases in any case
)
_DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shapes = layer_shapes(keys)
    rope, ffw = rope_of(keys.all, shapes[0].head_dim), gated_ffw(keys)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=shapes,
        rope=rope,
        attention=qwen2_attention,
        ffw=ffw,
    )
    if not keys.whole("num_nextn_predict_layers", 0, least=0):
        return recipe

    def drafting(prefix: str, form: WeightForm) -> PreNormLayer:
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            qwen2_attention(prefix, replace(shapes[0], window=None), form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
        )

    head = own_head(keys, MIMO, drafting, rope)
    return replace(recipe, unused=("model.mtp_layers.",), own_head=head)


def layer_shapes(keys: ConfigKeys) -> list[AttentionShape]:
    shape, first = attention_shape(keys), keys.whole("max_window_layers", least=0)
    # Most checkpoints set sliding_window without using it.
    window = keys.whole_or_none("sliding_window") if keys.flag("use_sliding_window") else None
    windows = windows_of(keys, window, lambda index: index >= first)
    return [replace(shape, window=window) for window in windows]


def qwen2_attention(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
    sources = AttentionSources.hugging_face(f"{prefix}.self_attn", biased=True)
    return Attention(shape, sources, form)


FAMILY = Family("qwen2", ("qwen2", "mimo"), "Qwen2, Qwen2.5, MiMo-7B", configure)
