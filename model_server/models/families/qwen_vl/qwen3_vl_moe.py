"""Qwen3-VL with experts: Qwen3-MoE rotated by triples of positions, with Qwen3-VL's tower.

Source: Bai et al. 2025 (arXiv:2511.21631); names and config keys are those of Hugging Face's
`Qwen3VLMoeForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3_moe import BuildFfw, layer_of, routed_ffw, sparse_layers
from model_server.models.families.qwen_vl.qwen3_vl import rope, vision
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.vision_encoder import OUTER, TOKENS
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys(
    "qwen3_vl_moe",
    (
        *DECODER,
        *OUTER,
        "attention_bias",
        "decoder_sparse_step",
        "experts_apart",  # neither is of config.json: see checkpoints/opening.py
        "experts_upright",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
    ),
    {**DECODER_OFF, **TOKENS},
)
_DEFAULTS = {
    "decoder_sparse_step": 1,
    "max_position_embeddings": 128000,
    "norm_topk_prob": True,
    "num_experts_per_tok": 4,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("norm_topk_prob", True)
    apart, upright = keys.flag("experts_apart"), keys.flag("experts_upright")
    routed = routed_ffw(keys, together=not apart, turned=not (apart or upright))
    recipe = text_recipe(keys, values, routed, 5e5)
    return replace(recipe, media=encoders(vision(keys, values, recipe.embed)))


def text_recipe(
    keys: ConfigKeys, values: Mapping[str, Any], routed: BuildFfw, base: float
) -> Recipe:
    """Return the recipe without encoders. routed: builds the experts of a layer. base: as of
    `rope`."""
    shape, sparse = attention_shape(keys), sparse_layers(keys)
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope(keys, shape.head_dim, base)] * len(sparse),
        layer=layer_of(keys, shape, sparse, routed),
    )


FAMILY = Family(
    "qwen3_vl_moe",
    ("qwen3_vl_moe_text", "qwen3_vl_moe"),
    "Qwen3-VL (experts)",
    configure,
    own_types_only=True,
)
