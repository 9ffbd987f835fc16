"""LFM2 with experts: routed experts in later layers, where a learnt bias corrects the choice.

Source: Liquid AI 2025, "LFM2 Technical Report" (arXiv:2511.23404); names and config keys are those
of Hugging Face's `Lfm2MoeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw
from model_server.models.families.recurrent.lfm2 import DEFAULTS, LFM2, dense_ffw, recipe_of
from model_server.models.known_keys import DECODER_OFF, KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.routing import GroupedSigmoidChoice, Router, checked_count
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "lfm2_moe",
    (
        *LFM2,
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_dense_layers",
        "num_experts",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "use_expert_bias",
    ),
    DECODER_OFF,
)
_DEFAULTS = {
    **DEFAULTS,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    dense, routed = dense_ffw(keys, keys.whole("intermediate_size")), _routed_ffw(keys)
    first = keys.whole("num_dense_layers", least=0)
    return recipe_of(keys, values, lambda index: dense if index < first else routed)


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("moe_intermediate_size")
    experts, biased = keys.whole("num_experts"), keys.flag("use_expert_bias", True)
    choice = GroupedSigmoidChoice(
        count=checked_count(keys, experts),
        groups=1,
        kept=1,
        normalised=keys.flag("norm_topk_prob", True),
        scale=keys.number("routed_scaling_factor", 1.0),
        least=1e-6,
    )

    def build(name: str, form: WeightForm) -> RoutedFeedForward:
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="w1", up="w3", down="w2"
        )
        bias = (f"{name}.expert_bias",) if biased else None
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.weight",), bias=bias),
            Experts(embed, ffw, sources, activation=activation_of("silu"), form=form),
        )

    return build


FAMILY = Family("lfm2_moe", ("lfm2_moe",), "LFM2 (experts)", configure, own_types_only=True)
