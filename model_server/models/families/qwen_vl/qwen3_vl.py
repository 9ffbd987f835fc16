"""Qwen3-VL: Qwen3 rotated by triples of positions; its tower also feeds the first layers.

Source: Bai et al. 2025 (arXiv:2511.21631), Meng et al. 2024 (arXiv:2406.04334); names and config
keys are those of Hugging Face's `Qwen3VLForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.ropes import triple_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import Rope
from model_server.models.media.media_recipe import MediaRecipe, encoders
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.tower_keys import MergerNames, learned_tower, merging_late
from model_server.models.media.qwen.vision_encoder import (
    OUTER,
    QWEN3,
    TOKENS,
    QwenKind,
    qwen_vision,
)
from model_server.models.recipe import Family, Recipe, serving
from sax.errors import CheckpointError

KEYS = KnownKeys("qwen3_vl", (*DECODER, *OUTER, "attention_bias"), {**DECODER_OFF, **TOKENS})
_MERGER = MergerNames()
DEFAULTS = {"head_dim": 128, "max_position_embeddings": 128000}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    shape = attention_shape(keys)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope(keys, shape.head_dim),
        attention=normed_attention(keys),
    )
    return replace(recipe, media=encoders(vision(keys, values, recipe.embed)))


def rope(keys: ConfigKeys, head_dim: int, base: float = 5e5) -> Rope:
    """base: of the frequencies, if the config gives none."""
    return triple_rope(keys, head_dim, (24, 20, 20), base=base, in_turn=True)


def deep_tower(
    keys: ConfigKeys, merger: MergerNames = _MERGER, deep: str = "deepstack_merger_list"
) -> TowerShape:
    """Return a tower that feeds several layers. merger, deep: names of what merges its patches.

    Raises CheckpointError.
    """
    made = learned_tower(keys, (8, 16, 24), merger)
    return replace(made, deep_merger=merging_late(merger), names=replace(made.names, deep=deep))


def vision(
    keys: ConfigKeys,
    values: Mapping[str, Any],
    embed: int,
    kind: QwenKind = QWEN3,
    tower: Callable[[ConfigKeys], TowerShape] = deep_tower,
) -> MediaRecipe | None:
    """Return the recipe of the vision encoder. Raises CheckpointError, InvalidRequest."""
    made = qwen_vision(keys, values, tower, kind, embed)
    layers = keys.whole("num_hidden_layers")
    if made is not None and made.levels > layers:
        raise CheckpointError(
            f"vision_config feeds {made.levels} layers of the language model, which has {layers}"
        )
    return made


FAMILY = Family(
    "qwen3_vl",
    ("qwen3_vl_text", "qwen3_vl"),
    "Qwen3-VL",
    configure,
    own_types_only=True,
)
