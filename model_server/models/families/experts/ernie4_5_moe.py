"""ERNIE 4.5 with experts: neighbouring dimensions rotate, a learnt bias corrects the choice.

Source: Baidu 2025, "ERNIE 4.5 Technical Report"; names and config keys are those of Hugging Face's
`Ernie4_5_MoeForCausalLM`. The layer without experts under `mtp_block` may draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    BuildFfw,
    decoder_recipe,
    gated_ffw,
    norm_of,
    plain_attention,
)
from model_server.models.families.llama import attention_shape
from model_server.models.families.own_heads import ERNIE, counted_head, drafting_layer
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import CorrectedSoftmaxChoice, Router, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "ernie4_5_moe",
    (
        *DECODER,
        "moe_intermediate_size",
        "moe_k",
        "moe_layer_end_index",
        "moe_layer_interval",
        "moe_layer_start_index",
        "moe_norm_min",
        "moe_num_experts",
        "moe_num_shared_experts",
        "num_nextn_predict_layers",
    ),
    {
        **DECODER_OFF,
        **ignored("moe_capacity"),  # of training: no token is dropped here
        "moe_gate": one_of("topk"),
        "moe_use_aux_free": one_of(True),
        "use_bias": one_of(False),
    },
)
_DEFAULTS = {
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_norm_min": 1e-12,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "rms_norm_eps": 1e-5,
}
_BASE = {"rope_theta": 500000.0}  # if config.json has no rope settings


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, sparse = attention_shape(keys), _sparse_layers(keys)
    dense, routed = gated_ffw(keys), _routed_ffw(keys)
    given = keys.all if keys.get("rope_parameters") else _BASE | keys.all

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            plain_attention(prefix, shape, form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            (routed if sparse[index] else dense)(prefix, form),
        )

    rope = rope_of(given, shape.head_dim, interleaved=True)
    recipe = decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope] * len(sparse),
        layer=layer,
        tied=True,
    )
    drafting = drafting_layer(keys, plain_attention, shape, dense)
    head = counted_head(keys, ERNIE, drafting, rope, tied=True)
    return replace(recipe, unused=(ERNIE.prefix,), own_head=head)


def _sparse_layers(keys: ConfigKeys) -> list[bool]:
    layers, step = keys.whole("num_hidden_layers"), keys.whole("moe_layer_interval")
    first, last = (
        keys.whole("moe_layer_start_index", least=0),
        keys.whole("moe_layer_end_index", least=-1),
    )
    last = layers - 1 if last == -1 else last
    return [(index + 1) % step == 0 and first <= index <= last for index in range(layers)]


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size")
    experts, shared = keys.whole("moe_num_experts"), keys.whole("moe_num_shared_experts", least=0)
    choice = CorrectedSoftmaxChoice(
        checked_count(keys, experts, "moe_k"), keys.number("moe_norm_min")
    )
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.mlp"
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="gate_proj", up="up_proj", down="down_proj"
        )
        always = None
        if shared:  # several are stored, and computed, as one wider feed-forward
            always = GatedFeedForward.hugging_face(
                embed,
                shared * ffw,
                f"{name}.shared_experts",
                activation=activation,
                form=form,
            )
        bias = (f"{name}.moe_statics.e_score_correction_bias",)
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.weight",), bias=bias, bias_is_row=True),
            Experts(embed, ffw, sources, activation=activation, form=form),
            always,
        )

    return build


FAMILY = Family(
    "ernie4_5_moe", ("ernie4_5_moe",), "ERNIE 4.5 (experts)", configure, own_types_only=True
)
