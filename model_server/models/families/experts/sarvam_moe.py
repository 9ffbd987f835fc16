"""Sarvam 30B: GLM-4.5's layers in which whole heads rotate; one tensor holds queries to values.

Source: Sarvam AI 2026, "Sarvam-30B"; names and config keys are those of Hugging Face's
`SarvamMoEConfig`, which the code of GLM-4.5 serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildAttention, gated_ffw, pre_norm_recipe
from model_server.models.families.experts.sarvam_mla import NAMES, OFF
from model_server.models.families.latent_recipe import spare_layers
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import partial_rope
from model_server.models.families.sigmoid_experts import (
    ROUTED,
    RoutedNames,
    first_sparse,
    routed_ffw,
)
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import RmsNorm
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.source import Tensor, cut
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "sarvam_moe",
    (*DECODER, *ROUTED, "partial_rotary_factor"),
    {**DECODER_OFF, **OFF, "use_qk_norm": one_of(True), "attention_bias": one_of(False)},
)
_DEFAULTS = {
    "first_k_dense_replace": 1,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1024,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 4,
    "topk_group": 1,
}
_BASE = {"rope_theta": 8000000.0}  # if config.json has no rope settings
_EXPERTS = RoutedNames(bias="gate.expert_bias")


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    given = {NAMES.get(key, key): value for key, value in (config or {}).items()}
    keys = ConfigKeys(given, KEYS, _DEFAULTS if given.get("rope_parameters") else _DEFAULTS | _BASE)
    shape, sparse = attention_shape(keys), first_sparse(keys)
    routed, dense = routed_ffw(keys, names=_EXPERTS), gated_ffw(keys)
    recipe = pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * len(sparse),
        rope=partial_rope(keys, shape.head_dim, share=1.0),
        attention=_attention(keys),
        ffw=[routed if its else dense for its in sparse],
        table="model.word_embeddings",
    )
    return replace(recipe, unused=spare_layers(keys, len(sparse)))


def _attention(keys: ConfigKeys) -> BuildAttention:
    epsilon = keys.number("rms_norm_eps", 1e-6)

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name, size = f"{prefix}.attention", shape.head_dim
        ends = [shape.heads * size, (shape.heads + shape.kv_heads) * size]
        ends = [0, *ends, (shape.heads + 2 * shape.kv_heads) * size]
        joined = Tensor(f"{name}.query_key_value.weight")
        q, k, v = (cut(joined, ends[at], ends[at + 1], of=ends[3]) for at in range(3))
        q_norm, k_norm = (
            RmsNorm(size, (f"{name}.{part}_layernorm.weight",), epsilon=epsilon)
            for part in ("query", "key")
        )
        sources = AttentionSources(q=q, k=k, v=v, out=(f"{name}.dense.weight",))
        return Attention(shape, sources, form, q_norm=q_norm, k_norm=k_norm)

    return build


FAMILY = Family("sarvam_moe", ("sarvam_moe",), "Sarvam 30B", configure, own_types_only=True)
