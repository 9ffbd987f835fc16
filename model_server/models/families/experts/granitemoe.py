"""Granite 3 with experts: Granite's multipliers, and experts whose matrices are stored together.

Beside them may be a feed-forward that every token uses.

Source: IBM 2024, "Granite 3.0 Language Models"; names and config keys are those of Hugging Face's
`GraniteMoeForCausalLM` and `GraniteMoeSharedForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import Router, SoftmaxChoice, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "granitemoe",
    (
        *DECODER,
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "num_experts_per_tok",
        "num_local_experts",
        "residual_multiplier",
        "shared_intermediate_size",
    ),
    DECODER_OFF,
)
_DEFAULTS = {
    "max_position_embeddings": 2048,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-6,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = replace(attention_shape(keys), scale=keys.number("attention_multiplier", 1.0))
    embedding_scale = keys.number("embedding_multiplier", 1.0)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        attention=biased_attention(keys),
        ffw=routed_ffw(keys, shared_ffw(keys)),
        scale=keys.number("residual_multiplier", 1.0),
        embedding_scale=lambda form: embedding_scale,
        logits_scale=1.0 / keys.number("logits_scaling", 1.0),
    )


# Names of the experts' gates and ups, of their downs, and of the router
_PUBLISHED = ("input_linear.weight", "output_linear.weight", "router.layer.weight")


def routed_ffw(
    keys: ConfigKeys,
    shared: BuildFfw | None = None,
    names: tuple[str, str, str] = _PUBLISHED,
) -> BuildFfw:
    """Builder of a layer's experts; shared: of what every token uses."""
    gate_up, down, router = names
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    experts = keys.whole("num_local_experts")
    choice = SoftmaxChoice(checked_count(keys, experts), normalised=True)
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.block_sparse_moe"
        sources = ExpertSources.together(
            experts,
            ffw,
            gate_up=f"{name}.{gate_up}",
            down=f"{name}.{down}",
        )
        return RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.{router}",)),
            Experts(embed, ffw, sources, activation=activation, form=form),
            shared and shared(prefix, form),
        )

    return build


def shared_ffw(keys: ConfigKeys) -> BuildFfw | None:
    """Builder of what every token uses; None: there is nothing."""
    if not keys.whole("shared_intermediate_size", 0, least=0):
        return None
    return shared_mlp(keys)


def shared_mlp(keys: ConfigKeys) -> BuildFfw:
    """Builder of a gated feed-forward whose first two matrices are stored as one."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("shared_intermediate_size")
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> GatedFeedForward:
        name = f"{prefix}.shared_mlp"
        both = Tensor(f"{name}.input_linear.weight")
        return GatedFeedForward(
            embed,
            ffw,
            gate=cut(both, 0, ffw, of=2 * ffw),
            up=cut(both, ffw, 2 * ffw, of=2 * ffw),
            down=(f"{name}.output_linear.weight",),
            activation=activation,
            form=form,
        )

    return build


FAMILY = Family(
    "granitemoe",
    ("granitemoe", "granitemoeshared"),
    "Granite 3 (experts), Granite with shared experts",
    configure,
    own_types_only=True,
)
