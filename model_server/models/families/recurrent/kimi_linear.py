"""Kimi Linear: delta networks whose memories fade row by row, some layers of latent attention.

Nothing rotates.
Source: Kimi Team 2025, "Kimi Linear" (arXiv:2510.26692); names and config keys are those of Hugging
Face's `KimiLinearForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.latent_recipe import LATENT, LATENT_OFF, latent_recipe
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import KnownKeys, one_of
from model_server.models.layers.delta_net import (
    ChannelDeltaNet,
    ChannelSources,
    DeltaShape,
    DeltaSources,
)
from model_server.models.layers.latent_attention import LatentAttention, LatentShape
from model_server.models.layers.layers import Names
from model_server.models.recipe import Family, Recipe, States
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# What published files call these keys
NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_local_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}
LINEAR = "linear_attn_config"
LINEAR_NAMES = {  # there -> beside the others, as later files have it
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
KEYS = KnownKeys(
    "kimi_linear",
    (
        *LATENT,
        *ROUTED,
        LINEAR,
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_head_dim",
        "linear_num_heads",
        "mlp_layer_types",
    ),
    {
        **LATENT_OFF,
        "mla_use_nope": one_of(True),
        "moe_router_activation_func": one_of("sigmoid"),
        "rope_interleave": one_of(True, False),
        "use_grouped_topk": one_of(True),
    },
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "linear_conv_kernel_dim": 4,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "max_position_embeddings": 1048576,
    "moe_intermediate_size": 1024,
    "n_group": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.446,
    "topk_group": 1,
}
_EXPERTS = RoutedNames(block="block_sparse_moe", parts=("w1", "w3", "w2"))
KINDS = {"linear_attention": False, "full_attention": True}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {NAMES.get(key, key): value for key, value in (config or {}).items()}
    keys = ConfigKeys(flat_linear(given, "kimi_linear", LINEAR_NAMES), KEYS, _DEFAULTS)
    keys.only("num_nextn_predict_layers", 0)
    attends, sparse = _attending(keys), listed_sparse(keys)
    delta = delta_shape(keys, keys.whole("linear_num_heads"), keys.whole("linear_head_dim"))
    made = partial(low_rank_delta_net, delta, (1, 1, delta.key_heads, 1), None)
    return latent_recipe(
        keys,
        values,
        sparse,
        routed_ffw(keys, names=_EXPERTS),
        attentions=[LatentAttention if its else made for its in attends],
        rotates=False,
        states=states_of(delta, attends),
    )


def flat_linear(
    config: Mapping[str, Any], family: str, names: Mapping[str, str], *others: str
) -> dict[str, Any]:
    """Return config.json with the sizes of delta networks beside the others, as later files do.

    others: more keys that their object may have. Raises CheckpointError.
    """
    given = config.get(LINEAR)
    if given is None:
        return dict(config)
    allowed = (*names, *others, "full_attn_layers", "kda_layers")
    if not isinstance(given, Mapping) or given.keys() - set(allowed):
        raise CheckpointError(
            f"config.json has {LINEAR} = {given!r}; the {family} family supports an object of "
            f"{', '.join(allowed)}"
        )
    return {**config, **{own: given[name] for name, own in names.items() if name in given}}


def _attending(keys: ConfigKeys) -> list[bool]:
    """One flag per layer: True if it attends. Raises CheckpointError."""
    found = kinds_of_layers(keys, KINDS)
    if found is not None:
        return found
    layers, given = keys.whole("num_hidden_layers"), keys.get(LINEAR) or {}
    whole, fading = given.get("full_attn_layers"), given.get("kda_layers")
    if whole is None or fading is None:
        return [index > 0 and index % 4 == 0 for index in range(layers)]
    if sorted([*whole, *fading]) != list(range(1, layers + 1)):
        raise CheckpointError(
            f"config.json has full_attn_layers = {whole!r} and kda_layers = {fading!r}; together "
            f"they must name each of {layers} layers once, counted from 1"
        )
    return [index + 1 in whole for index in range(layers)]


def delta_shape(keys: ConfigKeys, heads: int, size: int) -> DeltaShape:
    keys.only("hidden_act", "silu")  # of the convolutions as well
    return DeltaShape(
        embed=keys.whole("hidden_size"),
        key_heads=heads,
        value_heads=heads,
        key_dim=size,
        value_dim=size,
        width=keys.whole("linear_conv_kernel_dim"),
        epsilon=keys.number("rms_norm_eps", 1e-6),
    )


def states_of(delta: DeltaShape, attends: Sequence[bool]) -> States:
    return lambda shards: tuple(None if its else delta.states(shards) for its in attends)


def delta_sources(name: str, out: str) -> DeltaSources:
    """Sources of a delta network, but for its decay and its gate."""

    def weight(part: str) -> Names:
        return (f"{name}.{part}.weight",)

    return DeltaSources(
        q=weight("q_proj"),
        k=weight("k_proj"),
        v=weight("v_proj"),
        gate=(),
        rate=weight("b_proj"),
        decay=(),
        convolutions=(weight("q_conv1d"), weight("k_conv1d"), weight("v_conv1d")),
        log_decay=(f"{name}.A_log",),
        decay_bias=(f"{name}.dt_bias",),
        norm=weight("o_norm"),
        out=weight(out),
    )


def low_rank_delta_net(
    delta: DeltaShape,
    log_decay_shape: tuple[int, ...],
    least_decay: float | None,  # as of `ChannelDeltaNet`
    shape: LatentShape,
    name: str,
    form: WeightForm,
) -> ChannelDeltaNet:
    """Build a delta network whose decay and gate are of low rank."""

    def of_low_rank(part: str) -> tuple[Names, Names]:
        return (f"{name}.{part}_a_proj.weight",), (f"{name}.{part}_b_proj.weight",)

    own = ChannelSources(
        decay=of_low_rank("f"), gate=of_low_rank("g"), log_decay_shape=log_decay_shape
    )
    sources = delta_sources(name, "o_proj")
    return ChannelDeltaNet(delta, sources, own, form, least_decay=least_decay)


FAMILY = Family("kimi_linear", ("kimi_linear",), "Kimi Linear", configure, own_types_only=True)
