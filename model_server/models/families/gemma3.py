"""Gemma 3: Gemma 2 with normed queries and keys, and two kinds of rotary positions.

Sliding layers have their own rotary base; the others may be stretched to long contexts. The
vision encoder, if a checkpoint has one, is `media/gemma3_vision_encoder`.
Source: Kamath et al. 2025 (arXiv:2503.19786); names and config keys are those of Hugging Face's
`Gemma3ForCausalLM` and `Gemma3ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.gemma2 import SANDWICH, sandwich_recipe
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.known_keys import DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.rope import Rope
from model_server.models.media import gemma3_vision_encoder
from model_server.models.media.media_recipe import encoders
from model_server.models.recipe import Family, Recipe

# The reference stores the cap of attention and applies none; the pattern with an underscore is a
# note beside layer_types. The rest are the tokens around those of an image.
_UNUSED = ignored(
    "_sliding_window_pattern",
    "attn_logit_softcapping",
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
)
KEYS = KnownKeys(
    "gemma3",
    (*SANDWICH, "rope_local_base_freq", "sliding_window_pattern", *gemma3_vision_encoder.KEYS),
    {**DECODER_OFF, **_UNUSED},
)
# The larger models are published with hardly any keys.
_DEFAULTS = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131072,
}
_GLOBAL_BASE, _LOCAL_BASE = 1e6, 1e4


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    pattern = keys.whole("sliding_window_pattern")
    slides = sliding_layers(keys, lambda index: (index + 1) % pattern != 0)
    whole, local = ropes_of(keys)
    recipe = sandwich_recipe(
        keys,
        values,
        slides,
        [local if slide else whole for slide in slides],
        normed_attention(keys, plus_one=True),
        causal=not keys.flag("use_bidirectional_attention"),  # true in EmbeddingGemma
    )
    window = keys.whole_or_none("sliding_window") if any(slides) else None
    seen = gemma3_vision_encoder.gemma3_vision(keys, recipe.embed, window)
    return replace(recipe, media=encoders(seen))


def ropes_of(keys: ConfigKeys) -> tuple[Rope, Rope]:
    """Return the ropes of full and of sliding layers."""
    head_dim, given = keys.whole("head_dim"), keys.get("rope_parameters")
    if given is None:
        stretch = keys.get("rope_scaling") or {}
        given = {
            FULL: {"rope_theta": keys.number("rope_theta", _GLOBAL_BASE)} | stretch,
            SLIDING: {"rope_theta": keys.number("rope_local_base_freq", _LOCAL_BASE)},
        }
    bases = {FULL: _GLOBAL_BASE, SLIDING: _LOCAL_BASE}
    ropes = ropes_by_kind(keys, head_dim, given, bases)
    return ropes[FULL], ropes[SLIDING]


FAMILY = Family("gemma3", ("gemma3_text", "gemma3"), "Gemma 3, EmbeddingGemma", configure)
