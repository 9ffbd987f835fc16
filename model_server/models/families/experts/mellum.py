"""Mellum 2: Qwen3-MoE with windows in some layers, which rotate in another way.

Source: JetBrains 2026, "Mellum 2"; names and config keys are those of Hugging Face's
`MellumForCausalLM`. The multi-token-prediction layer may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers, slides_as, windows_of
from model_server.models.families.decoder_recipe import gated_ffw
from model_server.models.families.experts.mlp_layers import SPARSE, routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import QWEN, counted_head, drafting_layer
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.qwen3_moe import routed_ffw
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "mellum",
    (
        *DECODER,
        "attention_bias",
        "layer_types",
        "mlp_layer_types",
        "moe_intermediate_size",
        "mtp_layer_types",
        "mtp_mlp_layer_types",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "num_nextn_predict_layers",
        "sliding_window",
    ),
    DECODER_OFF,
)
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 896,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "sliding_window": 1024,
}
_BASES = {FULL: 5e5, SLIDING: 1e4}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = dict(config or {})
    if "num_mtp_layers" in given:
        given["num_nextn_predict_layers"] = given.pop("num_mtp_layers")
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    shape, window = attention_shape(keys), keys.whole("sliding_window")
    windows = windows_of(keys, window, lambda index: False)
    ropes = ropes_by_kind(keys, shape.head_dim, keys.get("rope_parameters", {}), _BASES)
    attention, routed = normed_attention(keys), routed_ffw(keys)
    sparse = kinds_of_layers(keys, SPARSE, "mlp_layer_types") or [True] * len(windows)
    recipe = routed_recipe(
        keys,
        values,
        shapes=[replace(shape, window=each) for each in windows],
        ropes=[ropes[FULL if each is None else SLIDING] for each in windows],
        attention=attention,
        sparse=sparse,
        routed=routed,
    )
    slides, has_experts = _drafting(keys)
    of_drafts = replace(shape, window=window if slides else None)
    layer = drafting_layer(keys, attention, of_drafts, routed if has_experts else gated_ffw(keys))
    head = counted_head(keys, QWEN, layer, ropes[SLIDING if slides else FULL])
    return replace(recipe, unused=(*recipe.unused, "mtp."), own_head=head)


def _drafting(keys: ConfigKeys) -> tuple[bool, bool]:
    """Return whether the layer that drafts has a window, and experts. Raises CheckpointError."""
    if keys.whole("num_nextn_predict_layers", 0, least=0) > 1:
        raise CheckpointError(
            f"config.json has num_nextn_predict_layers = {keys.get('num_nextn_predict_layers')}; "
            "the mellum family supports one layer that drafts"
        )
    kinds = keys.get("mtp_layer_types") or [SLIDING]
    ffws = keys.get("mtp_mlp_layer_types") or ["sparse"]
    if ffws[0] not in SPARSE:
        raise CheckpointError(
            f"config.json has mtp_mlp_layer_types = {ffws!r}; the mellum family supports dense "
            "and sparse"
        )
    return slides_as(keys, kinds[0]), SPARSE[ffws[0]]


FAMILY = Family("mellum", ("mellum",), "Mellum 2", configure, own_types_only=True)
