"""Qwen2-VL: Qwen2 rotated by triples of positions, with a vision tower for images of any size.

Source: Wang et al. 2024 (arXiv:2409.12191); names and config keys are those of Hugging Face's
`Qwen2VLForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.qwen2 import WINDOWS, layer_shapes, qwen2_attention
from model_server.models.families.ropes import triple_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.tower_keys import (
    MergerNames,
    layer_norm,
    merging,
    plain_ffw,
    sizes_of,
    vision_keys,
)
from model_server.models.media.qwen.vision_encoder import (
    OUTER,
    QWEN2,
    TOKENS,
    QwenKind,
    qwen_vision,
)
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys("qwen2_vl", (*DECODER, *WINDOWS, *OUTER), {**DECODER_OFF, **TOKENS})
DEFAULTS = {
    "max_position_embeddings": 32768,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
}
_VISION_DEFAULTS = {
    "depth": 32,
    "embed_dim": 1280,
    "hidden_act": "quick_gelu",
    "hidden_size": 3584,
    "mlp_ratio": 4,
    "num_heads": 16,
}
MERGER = MergerNames(norm="ln_q", up="mlp.0", down="mlp.2")


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    return recipe_of(ConfigKeys(config, KEYS, DEFAULTS), values, _tower)


def recipe_of(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    tower: Callable[[ConfigKeys], TowerShape],
    kind: QwenKind = QWEN2,
) -> Recipe:
    """Build the recipe of Qwen2 with a tower."""
    shapes = layer_shapes(keys)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=shapes,
        rope=triple_rope(keys, shapes[0].head_dim, (16, 24, 24), base=1e6, in_turn=False),
        attention=qwen2_attention,
    )
    return replace(recipe, media=encoders(qwen_vision(keys, values, tower, kind, recipe.embed)))


def _tower(keys: ConfigKeys) -> TowerShape:
    keys = vision_keys(keys, ("embed_dim", "mlp_ratio"), _VISION_DEFAULTS)
    embed = keys.whole("embed_dim")
    return TowerShape(
        **sizes_of(keys, embed),
        out=keys.whole("hidden_size"),
        merger=merging(MERGER),
        norm=layer_norm,
        ffw=plain_ffw(keys, embed, int(embed * keys.number("mlp_ratio")), "fc1", "fc2"),
    )


FAMILY = Family(
    "qwen2_vl",
    ("qwen2_vl_text", "qwen2_vl"),
    "Qwen2-VL",
    configure,
    own_types_only=True,
)
