"""EXAONE 4: norms after each half and over each head; layers that see everything do not rotate.

EXAONE 4.5 sees by Qwen2.5-VL's tower, whose heads share keys and values.
Source: LG AI Research 2025 (arXiv:2507.11407); names and config keys are those of Hugging Face's
`Exaone4ForCausalLM` and `Exaone4_5_ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.llama import attention_shape
from model_server.models.families.olmo2 import post_norm_recipe
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.qwen_vl.qwen2_5_vl import tower
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.vision_encoder import OUTER, QWEN2, TOKENS, qwen_vision
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "exaone4",
    (*DECODER, *OUTER, "attention_bias", "layer_types", "sliding_window", "sliding_window_pattern"),
    {
        **DECODER_OFF,
        **TOKENS,
    },
)
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("attention_bias", False)
    shape, window = attention_shape(keys), keys.whole_or_none("sliding_window")
    rope = rope_of(keys.all, shape.head_dim)
    # Without windows anywhere, as in the small ones, every layer rotates.
    slides = sliding_layers(keys, lambda index: _slides(keys, index))
    recipe = post_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window if slide else None) for slide in slides],
        ropes=[rope if slide or window is None else None for slide in slides],
        attention=normed_attention(keys),
    )
    return replace(recipe, media=encoders(qwen_vision(keys, values, _tower, _KIND, recipe.embed)))


def _tower(keys: ConfigKeys) -> TowerShape:
    return tower(keys, shared=8)


# Tokens of images and videos are counted like those of a text.
_KIND = replace(QWEN2, triples=False, tokens=(67, 68))


def _slides(keys: ConfigKeys, index: int) -> bool:
    """Published configs list the layers; a pattern in letters is a note beside them."""
    if keys.get("sliding_window") is None:
        return False
    return (index + 1) % keys.whole("sliding_window_pattern") != 0


FAMILY = Family(
    "exaone4", ("exaone4", "exaone4_5", "exaone4_5_text"), "EXAONE 4, EXAONE 4.5", configure
)
