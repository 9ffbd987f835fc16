"""Qwen3.5: gated delta networks, every fourth layer gated attention; images.

Source: Qwen Team 2026, "Qwen3.5"; Yang et al. 2024 (arXiv:2412.06464); names and config keys are
those of Hugging Face's `Qwen3_5ForCausalLM`. The multi-token-prediction layer may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.recurrent.delta_recipe import (
    DELTA,
    DELTA_DEFAULTS,
    attending,
    delta_recipe,
    delta_shape,
    gated_attention,
    rest_of,
)
from model_server.models.families.ropes import triple_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.delta_net import DeltaShape, DeltaSources, GatedDeltaNet
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.media.media_recipe import encoders
from model_server.models.media.qwen.tower import TowerShape
from model_server.models.media.qwen.tower_keys import learned_tower
from model_server.models.media.qwen.vision_encoder import OUTER, QWEN3, TOKENS, qwen_vision
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm

# The layers that draft further tokens, and notes.
OTHER_PARTS = {
    **TOKENS,
    **ignored("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"),
    **ignored("mamba_ssm_dtype", "attn_output_gate"),
}
KEYS = KnownKeys("qwen3_5", (*DECODER, *DELTA, *OUTER), {**DECODER_OFF, **OTHER_PARTS})
_KIND = replace(QWEN3, tokens=(248056, 248057))


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DELTA_DEFAULTS)
    return recipe_of(keys, values, gated_ffw(keys))


def recipe_of(keys: ConfigKeys, values: Mapping[str, Any], ffw: BuildFfw) -> Recipe:
    """Build the recipe of a decoder with this feed-forward in all layers."""
    shape, delta, attends = attention_shape(keys), delta_shape(keys), attending(keys)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm", plus_one=True),
            gated_attention(keys, prefix, shape, form)
            if attends[index]
            else GatedDeltaNet(delta, delta_sources(delta, f"{prefix}.linear_attn"), form),
            norm_of(keys, f"{prefix}.post_attention_layernorm", plus_one=True),
            ffw(prefix, form),
        )

    share = keys.number("partial_rotary_factor")
    rope = triple_rope(keys, shape.head_dim, (11, 11, 10), base=1e4, in_turn=True, share=share)
    recipe = delta_recipe(keys, values, shape, delta, attends, layer, rope, ffw)
    media = encoders(qwen_vision(keys, values, _tower, _KIND, recipe.embed))
    return replace(recipe, media=media)


def _tower(keys: ConfigKeys) -> TowerShape:
    return learned_tower(keys, ())


def delta_sources(shape: DeltaShape, name: str) -> DeltaSources:
    """Sources of a layer whose queries, keys and values are one projection, one after the other."""
    both, ends = Tensor(f"{name}.in_proj_qkv.weight"), [sum(shape.parts[:at]) for at in range(4)]
    q, k, v = (cut(both, ends[at], ends[at + 1], of=ends[3]) for at in range(3))
    gate, rate, decay = ((f"{name}.in_proj_{part}.weight",) for part in "zba")
    return DeltaSources(q=q, k=k, v=v, gate=gate, rate=rate, decay=decay, **rest_of(shape, name))


FAMILY = Family("qwen3_5", ("qwen3_5_text", "qwen3_5"), "Qwen3.5", configure)
