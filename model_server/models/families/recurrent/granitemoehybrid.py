"""Granite 4: Mamba-2 or attention in each layer, Granite's multipliers, experts and a shared one.

Source: IBM 2025, "Granite 4.0 Language Models"; Dao and Gu 2024 (arXiv:2405.21060); names and
config keys are those of Hugging Face's `GraniteMoeHybridForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, kinds_of_layers
from model_server.models.families.decoder_recipe import BuildFfw, decoder_recipe, norm_of
from model_server.models.families.dense.granite import MULTIPLIERS, multipliers
from model_server.models.families.experts.granitemoe import routed_ffw, shared_mlp
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.families.recurrent.mixers import (
    MAMBA,
    MAMBA_DEFAULTS,
    MAMBA_OFF,
    mamba_shape,
)
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.layers.state_space import StateSpace
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "granitemoehybrid",
    (
        *DECODER,
        *MAMBA,
        *MULTIPLIERS,
        "attention_bias",
        "layer_types",
        "num_experts_per_tok",
        "num_local_experts",
        "position_embedding_type",
        "shared_intermediate_size",
    ),
    {
        **DECODER_OFF,
        **MAMBA_OFF,
        **ignored("init_method"),
        "normalization_function": one_of("rmsnorm"),
    },
)
_DEFAULTS = {
    **MAMBA_DEFAULTS,
    "max_position_embeddings": 2048,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-6,
    "shared_intermediate_size": 1024,
}
_KINDS = {"mamba": False, "attention": True, "linear_attention": False, "full_attention": True}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    layers, by = keys.whole("num_hidden_layers"), multipliers(keys)
    shape = replace(attention_shape(keys), scale=by.scores)
    mamba = mamba_shape(keys, keys.number("rms_norm_eps"))
    attends = kinds_of_layers(keys, _KINDS) or [False] * layers
    attention, ffw = biased_attention(keys), _ffw(keys)
    rotates = keys.only("position_embedding_type", None, "nope", "rope") == "rope"
    rope = rope_of(keys.all, shape.head_dim) if rotates else None

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        return PreNormLayer(
            norm_of(keys, f"{prefix}.input_layernorm"),
            attention(prefix, shape, form)
            if attends[index]
            else StateSpace(mamba, f"{prefix}.mamba", form),
            norm_of(keys, f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            scale=by.layers,
        )

    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope if its else None for its in attends],
        layer=layer,
        embedding_scale=lambda form: by.embedding,
        logits_scale=1 / by.logits,
        states=lambda shards: tuple(None if its else mamba.states(shards) for its in attends),
    )


def _ffw(keys: ConfigKeys) -> BuildFfw:
    """Builder of the experts and the feed-forward that every token uses; or of that alone."""
    shared = shared_mlp(keys)
    sparse = keys.whole("num_local_experts", least=0) > 0
    return routed_ffw(keys, shared) if sparse else shared


FAMILY = Family(
    "granitemoehybrid",
    ("granitemoehybrid",),
    "Granite 4.0 (H and dense)",
    configure,
    own_types_only=True,
)
