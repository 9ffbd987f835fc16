"""Qwen1.5-MoE, Qwen2-MoE: Qwen2 with routed experts and a gated feed-forward that all tokens use.

Source: Qwen Team 2024, "Qwen1.5-MoE", and Yang et al. 2024 (arXiv:2407.10671); names and config
keys are those of Hugging Face's `Qwen2MoeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
from flax import nnx

from model_server.kernels.row_sums import logistic, rounded
from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import decoder_recipe, gated_ffw, norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3_moe import routed_ffw, sparse_layers
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import Linear
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "qwen2_moe",
    (
        *DECODER,
        "decoder_sparse_step",
        "layer_types",
        "max_window_layers",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "qkv_bias",
        "shared_expert_intermediate_size",
        "sliding_window",
        "use_sliding_window",
    ),
    DECODER_OFF,
)
_DEFAULTS = {
    "decoder_sparse_step": 1,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 4096,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, sparse, biased = attention_shape(keys), sparse_layers(keys), keys.flag("qkv_bias", True)
    window = keys.whole_or_none("sliding_window") if keys.flag("use_sliding_window") else None
    first = keys.whole("max_window_layers", least=0)
    windows = windows_of(keys, window, lambda index: index % 2 == 0 and index < first)
    dense, routed = gated_ffw(keys), routed_ffw(keys, shared=shared_ffw(keys))

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        sources = AttentionSources.hugging_face(f"{prefix}.self_attn", biased=biased)
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            Attention(replace(shape, window=windows[index]), sources, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            (routed if sparse[index] else dense)(prefix, form),
        )

    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope_of(keys.all, shape.head_dim)] * len(sparse),
        layer=layer,
        windows=windows,
    )


class OpenedFeedForward(nnx.Module):
    """sigmoid(gate(x)) * ffw(x), with one gate for all numbers of a token."""

    def __init__(self, gate: Linear, ffw: GatedFeedForward) -> None:
        self.gate = gate
        self.ffw = ffw

    def __call__(self, x: jax.Array) -> jax.Array:
        return rounded(logistic(self.gate(x)) * self.ffw(x))


def shared_ffw(keys: ConfigKeys) -> Any:
    """Builder of the feed-forward that every token uses as far as its gate opens."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("shared_expert_intermediate_size")
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(name: str, form: WeightForm) -> OpenedFeedForward:
        # One row is too few for the native products and not worth quantising.
        plain = replace(form, quantization=None, tiles=False, adapters=None)
        return OpenedFeedForward(
            Linear(1, embed, (None, "embed"), (f"{name}.shared_expert_gate.weight",), form=plain),
            GatedFeedForward.hugging_face(
                embed, ffw, f"{name}.shared_expert", activation=activation, form=form
            ),
        )

    return build


FAMILY = Family(
    "qwen2_moe", ("qwen2_moe",), "Qwen1.5-MoE, Qwen2-MoE", configure, own_types_only=True
)
