"""EXAONE 4: norms after each half and over each head; layers that see everything do not rotate.

Source: LG AI Research 2025 (arXiv:2507.11407); names and config keys are those of Hugging Face's
`Exaone4ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.llama import attention_shape
from model_server.models.families.olmo2 import post_norm_recipe
from model_server.models.families.qwen3 import normed_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "exaone4",
    (*DECODER, "attention_bias", "layer_types", "sliding_window", "sliding_window_pattern"),
    {
        **DECODER_OFF,
        # Of EXAONE 4.5's tower, which is not built
        **ignored("image_token_id", "video_token_id"),
        **ignored("vision_end_token_id", "vision_start_token_id"),
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
    return post_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window if slide else None) for slide in slides],
        ropes=[rope if slide or window is None else None for slide in slides],
        attention=normed_attention(keys),
    )


def _slides(keys: ConfigKeys, index: int) -> bool:
    """Published configs list the layers; a pattern in letters is a note beside them."""
    if keys.get("sliding_window") is None:
        return False
    return (index + 1) % keys.whole("sliding_window_pattern") != 0


FAMILY = Family(
    "exaone4", ("exaone4", "exaone4_5", "exaone4_5_text"), "EXAONE 4, EXAONE 4.5", configure
)
