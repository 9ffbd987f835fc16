"""Qwen3-Next: gated delta networks, every fourth layer gated attention; experts with a shared one.

Source: Qwen Team 2025, "Qwen3-Next"; Yang et al. 2024 (arXiv:2412.06464); names and config keys are
those of Hugging Face's `Qwen3NextForCausalLM`. The multi-token-prediction layer may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw, norm_of
from model_server.models.families.experts.qwen2_moe import shared_ffw
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3_moe import routed_ffw, sparse_layers
from model_server.models.families.recurrent.delta_recipe import (
    DELTA,
    DELTA_DEFAULTS,
    attending,
    delta_recipe,
    delta_shape,
    gated_attention,
    rest_of,
)
from model_server.models.families.ropes import partial_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.delta_net import DeltaShape, DeltaSources, GatedDeltaNet
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.source import GroupRows, Tensor, WeightSource
from model_server.models.weights.weight import WeightForm

_EXPERTS = (
    "decoder_sparse_step",
    "mlp_only_layers",
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts",
    "num_experts_per_tok",
    "num_local_experts",
    "shared_expert_intermediate_size",
)
KEYS = KnownKeys(
    "qwen3_next",
    (*DECODER, *DELTA, *_EXPERTS),
    DECODER_OFF,
)
_DEFAULTS = {
    **DELTA_DEFAULTS,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "shared_expert_intermediate_size": 512,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, delta, attends = attention_shape(keys), delta_shape(keys), attending(keys)
    dense, sparse = gated_ffw(keys), sparse_layers(keys)
    routed = routed_ffw(keys, shared=shared_ffw(keys))

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm", plus_one=True),
            gated_attention(keys, prefix, shape, form)
            if attends[index]
            else GatedDeltaNet(delta, _delta_sources(delta, f"{prefix}.linear_attn"), form),
            norm_of(keys, f"{prefix}.post_attention_layernorm", plus_one=True),
            (routed if sparse[index] else dense)(prefix, form),
        )

    rope = partial_rope(keys, shape.head_dim, share=keys.number("partial_rotary_factor"))
    return delta_recipe(keys, values, shape, delta, attends, layer, rope, routed)


def _delta_sources(shape: DeltaShape, name: str) -> DeltaSources:
    """Sources of a layer whose projections lie key head by key head."""
    values = shape.value_heads // shape.key_heads  # heads for each key head
    widths = shape.key_dim, shape.key_dim, values * shape.value_dim, values * shape.value_dim
    q, k, v, gate = _of_groups(f"{name}.in_proj_qkvz.weight", widths, shape.key_heads)
    rate, decay = _of_groups(f"{name}.in_proj_ba.weight", (values, values), shape.key_heads)
    return DeltaSources(q=q, k=k, v=v, gate=gate, rate=rate, decay=decay, **rest_of(shape, name))


def _of_groups(name: str, widths: tuple[int, ...], groups: int) -> list[WeightSource]:
    """The parts of every group of rows, one after the other."""
    ends = [sum(widths[: at + 1]) for at in range(len(widths))]
    starts = zip([0, *ends[:-1]], ends, strict=True)
    return [GroupRows(Tensor(name), ends[-1], start, end, groups) for start, end in starts]


FAMILY = Family("qwen3_next", ("qwen3_next",), "Qwen3-Next", configure)
