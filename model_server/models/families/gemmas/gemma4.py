"""Gemma 4: larger heads where all is seen, shared keys, inputs per layer, experts beside the rest.

Only the text part of a multimodal checkpoint is read.
Source: Google 2026, "Gemma 4"; names and config keys are those of Hugging Face's
`Gemma4ForCausalLM` and `Gemma4ForConditionalGeneration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.kernels.pages import HeadShape
from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import norm_of
from model_server.models.families.gemmas.gemma4_keys import (
    DEFAULTS,
    KEYS,
    ropes_of,
    shapes_of,
    slides_of,
)
from model_server.models.families.gemmas.gemma4_layer import (
    ExpertsBeside,
    ScaledRouter,
    ScaledSandwichLayer,
)
from model_server.models.families.gemmas.lending_recipe import (
    activation_in,
    epsilon_of,
    gate_of,
    lenders_of,
    lending_recipe,
    norms_of,
)
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.lending.lent_attention import LentAttention
from model_server.models.layers.routing import Router, SoftmaxChoice, checked_count
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    keys.only("use_bidirectional_attention", None, "vision")  # tokens of images are not read
    slides = slides_of(keys)
    lenders, (whole, local) = lenders_of(keys, slides), shapes_of(keys)
    of_whole, of_local = ropes_of(keys, whole.head_dim, local.head_dim)
    gated = keys.whole("hidden_size_per_layer_input", least=0) > 0

    def layer(index: int, form: WeightForm) -> ScaledSandwichLayer:
        name, borrows = f"model.layers.{index}", lenders[index] is not None
        attention = LentAttention(
            local if slides[index] else whole,
            f"{name}.self_attn",
            form,
            epsilon=epsilon_of(keys),
            borrows=borrows,
            keys_as_values=keys.flag("attention_k_eq_v") and not slides[index],
            biased=keys.flag("attention_bias"),
        )
        return ScaledSandwichLayer(
            norms_of(keys, name),
            attention,
            _dense(keys, name, form, wide=borrows and keys.flag("use_double_wide_mlp")),
            f"{name}.layer_scalar",
            experts=_experts(keys, name, form) if keys.flag("enable_moe_block") else None,
            gate=gate_of(keys, name, form) if gated else None,
        )

    other = HeadShape(whole.kv_heads, whole.head_dim, whole.head_dim)
    differs = (whole.kv_heads, whole.head_dim) != (local.kv_heads, local.head_dim)
    return lending_recipe(
        keys,
        values,
        shape=local,
        lenders=lenders,
        ropes=[of_local if slide else of_whole for slide in slides],
        windows=[local.window if slide else None for slide in slides],
        layer=layer,
        others=[other if differs and not slide else None for slide in slides],
    )


def _dense(keys: ConfigKeys, name: str, form: WeightForm, *, wide: bool) -> GatedFeedForward:
    return GatedFeedForward.hugging_face(
        keys.whole("hidden_size"),
        keys.whole("intermediate_size") * (2 if wide else 1),
        f"{name}.mlp",
        activation=activation_in(keys),
        form=form,
    )


def _experts(keys: ConfigKeys, name: str, form: WeightForm) -> ExpertsBeside:
    embed, count = keys.whole("hidden_size"), keys.whole("num_experts")
    ffw, router = keys.whole("moe_intermediate_size"), f"{name}.router"
    choice = SoftmaxChoice(checked_count(keys, count, "top_k_experts"), normalised=True)
    sources = ExpertSources.together(
        count, ffw, gate_up=f"{name}.experts.gate_up_proj", down=f"{name}.experts.down_proj"
    )
    routed = Router(embed, count, choice, (f"{router}.proj.weight",))
    after_dense, before, after = (
        norm_of(keys, f"{name}.{part}")
        for part in (
            "post_feedforward_layernorm_1",
            "pre_feedforward_layernorm_2",
            "post_feedforward_layernorm_2",
        )
    )
    return ExpertsBeside(
        after_dense,
        before,
        ScaledRouter(routed, embed, count, router, epsilon=epsilon_of(keys)),
        Experts(embed, ffw, sources, activation=activation_in(keys), form=form),
        after,
    )


FAMILY = Family("gemma4", ("gemma4_text", "gemma4"), "Gemma 4", configure, own_types_only=True)
