"""Mixtral: Mistral with eight experts in place of each feed-forward.

Source: Jiang et al. 2024 (arXiv:2401.04088); names and config keys are those of Hugging Face's
`MixtralForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildFfw, pre_norm_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources, RoutedFeedForward
from model_server.models.layers.rope import rope_of
from model_server.models.layers.routing import Choice, Router, SoftmaxChoice, checked_count
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "mixtral",
    (*DECODER, "num_experts_per_tok", "num_local_experts", "sliding_window"),
    DECODER_OFF,
)
_DEFAULTS = {"num_experts_per_tok": 2, "num_local_experts": 8, "max_position_embeddings": 131072}
_THETA = {"rope_theta": 1e6}  # if config.json has no rope settings


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = attention_shape(keys, window=keys.whole_or_none("sliding_window"))
    rope = keys.all if keys.get("rope_parameters") else _THETA | keys.all
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(rope, shape.head_dim),
        ffw=block_sparse_ffw(keys),
    )


def block_sparse_ffw(keys: ConfigKeys, choice: Choice | None = None) -> BuildFfw:
    """Builder of experts under Mixtral's names; choice: None: by probability, adding up to 1."""
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    experts = keys.whole("num_local_experts")
    chosen = choice or SoftmaxChoice(checked_count(keys, experts), normalised=True)
    activation = activation_of(keys.get("hidden_act", "silu"))

    def build(prefix: str, form: WeightForm) -> RoutedFeedForward:
        name = f"{prefix}.block_sparse_moe"
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="w1", up="w3", down="w2"
        )
        return RoutedFeedForward(
            Router(embed, experts, chosen, (f"{name}.gate.weight",)),
            Experts(embed, ffw, sources, activation=activation, form=form),
        )

    return build


FAMILY = Family("mixtral", ("mixtral",), "Mixtral", configure)
