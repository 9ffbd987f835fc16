"""Command A+: Command A whose layers, but for the first ones, have experts beside shared ones.

Source: Cohere 2026, "Command A+"; names and config keys are those of Hugging Face's
`Cohere2MoeForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax import nnx

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import BuildFfw, gated_ffw, rms_norms
from model_server.models.families.dense.cohere import (
    COMPUTED,
    DEFAULTS,
    OFF,
    context_of,
    interleaved_rope,
    parallel_recipe,
)
from model_server.models.families.experts.mlp_layers import listed_sparse
from model_server.models.families.llama import attention_shape
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import (
    Experts,
    ExpertSources,
    HalvedFeedForward,
    RoutedFeedForward,
)
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.routing import (
    Choice,
    GroupedSigmoidChoice,
    Router,
    SoftmaxChoice,
    checked_count,
)
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

_FIRST_PATTERN = "prefix_dense_sliding_window_pattern"
KEYS = KnownKeys(
    "cohere2_moe",
    (
        *COMPUTED,
        "expert_selection_fn",
        "first_k_dense_replace",
        "layer_types",
        "mlp_layer_types",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_shared_experts",
        "prefix_dense_intermediate_size",
        _FIRST_PATTERN,
        "shared_expert_combination_strategy",
        "sliding_window",
        "sliding_window_pattern",
    ),
    OFF,
)
_DEFAULTS = {
    "first_k_dense_replace": 0,
    "head_dim": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 0,
    _FIRST_PATTERN: 1,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS | _DEFAULTS)
    keys.only("use_qk_norm", False)
    keys.only("rope_scaling", None)  # the reference reads rope_parameters alone
    shape, sparse, windows = attention_shape(keys), listed_sparse(keys), _windows(keys)
    rope, first_rotate = interleaved_rope(keys, shape), keys.whole(_FIRST_PATTERN) == 1
    routed = _routed_ffw(keys)
    dense = gated_ffw(keys, size=keys.whole_or_none("prefix_dense_intermediate_size"))
    return parallel_recipe(
        keys,
        serving(values, context_of(keys)),
        shapes=[replace(shape, window=window) for window in windows],
        ropes=[
            rope if window or (first_rotate and not experts) else None
            for window, experts in zip(windows, sparse, strict=True)
        ],
        ffws=[routed if experts else dense for experts in sparse],
        norm=rms_norms(keys) if keys.get("rms_norm_eps") is not None else None,
    )


def _windows(keys: ConfigKeys) -> list[int | None]:
    """Windows, one per layer; the first layers, without experts, have a pattern of their own."""
    first, rest = keys.whole("first_k_dense_replace", least=0), keys.whole("sliding_window_pattern")

    def slides(index: int) -> bool:
        if index < first:
            return (index + 1) % keys.whole(_FIRST_PATTERN) != 0
        return (index - first + 1) % rest != 0

    return windows_of(keys, keys.whole("sliding_window"), slides)


def _choice(keys: ConfigKeys, experts: int) -> Choice:
    count = checked_count(keys, experts)
    if keys.only("expert_selection_fn", "softmax", "sigmoid") == "sigmoid":
        normalised = keys.flag("norm_topk_prob", True)
        return GroupedSigmoidChoice(count, 1, 1, normalised, scale=1.0, least=0.0)
    return SoftmaxChoice(count, normalised=True)


def _routed_ffw(keys: ConfigKeys) -> BuildFfw:
    embed, ffw = keys.whole("hidden_size"), keys.whole("intermediate_size")
    experts, shared = keys.whole("num_experts"), keys.whole("num_shared_experts", least=0)
    choice, activation = _choice(keys, experts), activation_of(keys.get("hidden_act", "silu"))
    averages = keys.only("shared_expert_combination_strategy", "average", "sum") == "average"

    def build(prefix: str, form: WeightForm) -> nnx.Module:
        name = f"{prefix}.mlp"
        sources = ExpertSources.hugging_face(
            f"{name}.experts", experts, gate="gate_proj", up="up_proj", down="down_proj"
        )
        always = None
        if shared:
            always = GatedFeedForward.hugging_face(
                embed, shared * ffw, f"{name}.shared_experts", activation=activation, form=form
            )
        made = RoutedFeedForward(
            Router(embed, experts, choice, (f"{name}.gate.weight",)),
            Experts(embed, ffw, sources, activation=activation, form=form),
            always,
        )
        return HalvedFeedForward(made) if shared and averages else made

    return build


FAMILY = Family("cohere2_moe", ("cohere2_moe",), "Command A+", configure, own_types_only=True)
