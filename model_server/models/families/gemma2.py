"""Gemma 2: Gemma with soft caps, alternating sliding and full layers, and norms around each half.

Source: Riviere et al. 2024 (arXiv:2408.00118); names and config keys are those of Hugging Face's
`Gemma2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    decoder_recipe,
    gated_ffw,
    norm_of,
)
from model_server.models.families.gemma import GEMMA, activation_name, embedding_scale
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.attention import AttentionShape
from model_server.models.layers.pre_norm import SandwichNormLayer
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

SANDWICH = (
    *GEMMA,
    "final_logit_softcapping",
    "layer_types",
    "query_pre_attn_scalar",
    "sliding_window",
)
# The first checkpoints give the window twice.
KEYS = KnownKeys(
    "gemma2",
    (*SANDWICH, "attn_logit_softcapping"),
    {**DECODER_OFF, **ignored("sliding_window_size")},
)
_DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("use_bidirectional_attention", False)
    slides = sliding_layers(keys, lambda index: index % 2 == 0)
    rope = rope_of(keys.all, keys.whole("head_dim"))
    return sandwich_recipe(
        keys,
        values,
        slides,
        [rope] * len(slides),
        biased_attention(keys),
        softcap=keys.number_or_none("attn_logit_softcapping"),
    )


def sandwich_recipe(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    slides: Sequence[bool],
    ropes: Sequence[Rope],
    attention: BuildAttention,
    *,
    softcap: float | None = None,
    causal: bool = True,
) -> Recipe:
    """Build a recipe over layers with four norms, some of them with a sliding window.

    softcap: of the attention scores. causal: False: a window reaches half as far on either side.
    """
    shape, window = _shape(keys, softcap), keys.whole_or_none("sliding_window")
    windows = [window if slide else None for slide in slides]
    ffw = gated_ffw(keys, activation_name(keys))

    def layer(index: int, form: WeightForm) -> SandwichNormLayer:
        prefix = f"model.layers.{index}"
        own = replace(shape, window=windows[index])
        return SandwichNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm", plus_one=True),
            attention(prefix, own, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm", plus_one=True),
            norm_of(keys, f"{prefix}.pre_feedforward_layernorm", plus_one=True),
            ffw(prefix, form),
            norm_of(keys, f"{prefix}.post_feedforward_layernorm", plus_one=True),
        )

    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=ropes,
        layer=layer,
        plus_one=True,
        tied=True,
        embedding_scale=embedding_scale(keys),
        logits_softcap=keys.number_or_none("final_logit_softcapping"),
        windows=windows,
    )
    return replace(recipe, causal=causal)


def _shape(keys: ConfigKeys, softcap: float | None) -> AttentionShape:
    """Llama's shape, with scores scaled by a config value rather than the head size."""
    shape = attention_shape(keys, softcap=softcap)
    return replace(shape, scale=keys.number("query_pre_attn_scalar") ** -0.5)


FAMILY = Family("gemma2", ("gemma2",), "Gemma 2", configure)
