"""Laguna: gates on what heads find, more heads in some layers, experts with a shared one.

Source: Poolside 2026, "Laguna"; names and config keys are those of Hugging Face's
`LagunaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.kernels.row_sums import softplus
from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.experts.mlp_layers import listed_sparse, routed_recipe
from model_server.models.families.llama import attention_shape
from model_server.models.families.qwen3 import normed_attention
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.families.sigmoid_experts import ROUTED, RoutedNames, routed_ffw
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.attention import AttentionShape, OutputGate
from model_server.models.layers.routing import GroupedSigmoidChoice, checked_count
from model_server.models.recipe import Family, Recipe
from sax.errors import CheckpointError

# DeepSeek's names of these keys
_NAMES = {
    "moe_routed_scaling_factor": "routed_scaling_factor",
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
}
KEYS = KnownKeys(
    "laguna",
    (
        *DECODER,
        *ROUTED,
        "attention_bias",
        "gating",
        "layer_types",
        "mlp_layer_types",
        "moe_router_logit_softcapping",
        "num_attention_heads_per_layer",
        "shared_expert_intermediate_size",
        "sliding_window",
    ),
    {**DECODER_OFF, "moe_apply_router_weight_on_input": one_of(False)},
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "shared_expert_intermediate_size": 512,
    "sliding_window": 512,
}
_EXPERTS = RoutedNames(bias="experts.e_score_correction_bias", shared="shared_expert")
_BASES = {FULL: 5e5, SLIDING: 1e4}
_SHARES = {FULL: 0.5, SLIDING: 1.0}  # without rope settings


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {_NAMES.get(key, key): value for key, value in (config or {}).items()}
    keys = ConfigKeys(given, KEYS, _DEFAULTS)
    windows = windows_of(keys, keys.whole("sliding_window"), lambda index: False)
    settings = keys.get("rope_parameters")
    if settings is None:
        settings = {kind: {"partial_rotary_factor": share} for kind, share in _SHARES.items()}
    ropes = ropes_by_kind(keys, keys.whole("head_dim"), settings, _BASES, share=1.0)
    return routed_recipe(
        keys,
        values,
        shapes=[
            replace(shape, window=window)
            for shape, window in zip(_shapes(keys), windows, strict=True)
        ],
        ropes=[ropes[FULL if window is None else SLIDING] for window in windows],
        attention=normed_attention(keys, gate="g_proj", gate_kind=_gate(keys)),
        sparse=listed_sparse(keys),
        routed=routed_ffw(
            keys,
            _choice(keys),
            names=_EXPERTS,
            shared=keys.whole("shared_expert_intermediate_size"),
        ),
    )


def _shapes(keys: ConfigKeys) -> list[AttentionShape]:
    """One per layer. Raises CheckpointError."""
    shape, layers = attention_shape(keys), keys.whole("num_hidden_layers")
    given = keys.get("num_attention_heads_per_layer")
    if given is None:
        return [shape] * layers
    counts = [
        each for each in given if type(each) is int and each > 0 and not each % shape.kv_heads
    ]
    if len(given) != layers or len(counts) != layers:
        raise CheckpointError(
            f"config.json has num_attention_heads_per_layer = {given!r}; the laguna family needs a "
            f"multiple of num_key_value_heads = {shape.kv_heads} for each of {layers} layers"
        )
    return [replace(shape, heads=heads) for heads in counts]


def _gate(keys: ConfigKeys) -> OutputGate:
    kind = keys.only("gating", True, "per-head", "per-element")
    return OutputGate(by_heads=kind != "per-element", activation=softplus)


def _choice(keys: ConfigKeys) -> GroupedSigmoidChoice:
    cap = keys.number("moe_router_logit_softcapping", 0.0)
    return GroupedSigmoidChoice(
        checked_count(keys, keys.whole("n_routed_experts")),
        groups=1,
        kept=1,
        normalised=True,
        scale=keys.number("routed_scaling_factor", 1.0),
        softcap=cap if cap > 0 else None,
    )


FAMILY = Family("laguna", ("laguna",), "Laguna", configure, own_types_only=True)
