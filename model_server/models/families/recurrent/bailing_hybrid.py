"""Ling 3: delta networks whose memories fade row by row, and latent attention with gated heads.

Source: inclusionAI 2026, "Ling 3"; Kimi Team 2025 (arXiv:2510.26692); names and config keys are
those of Hugging Face's `BailingHybridForCausalLM`. The layers that draft are skipped: the reference
does not say of which kind they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.recurrent.kimi_linear import (
    KINDS,
    NAMES,
    delta_shape,
    delta_sources,
    states_of,
)
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.attention import OutputGate
from model_server.models.layers.delta_net import ChannelDeltaNet, ChannelSources, DeltaShape
from model_server.models.layers.latent_attention import LatentAttention, LatentShape
from model_server.models.recipe import Family, Recipe
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "bailing_hybrid",
    (
        *LATENT,
        *ROUTED,
        "head_dim",
        "kda_lower_bound",
        "kda_safe_gate",
        "layer_group_size",
        "layer_types",
        "linear_conv_kernel_dim",
        "mlp_layer_types",
    ),
    {
        **{key: fits for key, fits in LATENT_OFF.items() if key != "head_dim"},
        **ignored("mtp_loss_scaling_factor"),
        # As many and as large as the heads that attend; transformers saves them as well
        **ignored("linear_head_dim", "linear_num_heads"),
        "linear_backend": one_of("kda"),
        "rope_interleave": one_of(True),
        "score_function": one_of("sigmoid"),
        "moe_router_enable_expert_bias": one_of(True),
        "use_bias": one_of(False),
        "use_qkv_bias": one_of(False),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 2,
    "head_dim": 128,
    "kda_lower_bound": -5.0,
    "kda_safe_gate": True,
    "layer_group_size": 6,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 768,
    "n_group": 8,
    "n_routed_experts": 512,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "rope_theta": 6000000.0,
    "topk_group": 4,
}
_NAMES = {**NAMES, "num_mtp_layers": "num_nextn_predict_layers"}
_NAMES |= {"short_conv_kernel_size": "linear_conv_kernel_dim"}
_EXPERTS = RoutedNames(bias="gate.expert_bias")
_GATE = OutputGate(by_heads=True)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    apart = {key: value for key, value in (config or {}).items() if key != "linear_conv_kernel_dim"}
    given = {_NAMES.get(key, key): value for key, value in apart.items()}
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    attends, sparse = _attending(keys), listed_sparse(keys)
    delta = delta_shape(keys, keys.whole("num_attention_heads"), keys.whole("head_dim"))
    least = keys.number("kda_lower_bound") if keys.flag("kda_safe_gate") else None
    latent = partial(LatentAttention, out="dense", gate="g_proj", gate_kind=_GATE)
    return latent_recipe(
        keys,
        values,
        sparse,
        routed_ffw(keys, names=_EXPERTS),
        attentions=[latent if its else partial(_delta_net, delta, least) for its in attends],
        states=states_of(delta, attends),
        part="attention",
        table="model.word_embeddings",
    )


def _attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends. Raises CheckpointError."""
    found, every = kinds_of_layers(keys, KINDS), keys.whole("layer_group_size")
    if found is not None:
        return found
    return [(index + 1) % every == 0 for index in range(keys.whole("num_hidden_layers"))]


def _delta_net(
    delta: DeltaShape, least: float | None, shape: LatentShape, name: str, form: WeightForm
) -> ChannelDeltaNet:
    own = ChannelSources(
        decay=((f"{name}.f_proj.weight",),),
        gate=((f"{name}.g_proj.weight",),),
        log_decay_shape=(delta.key_heads,),
    )
    return ChannelDeltaNet(delta, delta_sources(name, "dense"), own, form, least_decay=least)


FAMILY = Family("bailing_hybrid", ("bailing_hybrid",), "Ling 3", configure, own_types_only=True)
