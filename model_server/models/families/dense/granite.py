"""Granite 3: Llama whose embeddings, scores, layers and logits are multiplied by constants.

Source: IBM Research 2024, "Granite 3.0 Language Models", with the scalings of Shen et al. 2024
(arXiv:2408.13359); names and config keys are those of Hugging Face's `GraniteForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from sax.errors import CheckpointError

MULTIPLIERS = (
    "attention_multiplier",
    "embedding_multiplier",
    "logits_scaling",
    "residual_multiplier",
)
KEYS = KnownKeys("granite", (*DECODER, *MULTIPLIERS, "attention_bias", "mlp_bias"), DECODER_OFF)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, {"max_position_embeddings": 2048})
    by = multipliers(keys)
    shape = replace(attention_shape(keys), scale=by.scores)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        attention=biased_attention(keys),
        ffw=gated_ffw(keys, biased=keys.flag("mlp_bias")),
        scale=by.layers,
        embedding_scale=lambda form: by.embedding,
        logits_scale=1 / by.logits,
    )


class Multipliers(NamedTuple):
    """The numbers of MULTIPLIERS, 1 where the config has none."""

    scores: float
    embedding: float
    logits: float  # divides them
    layers: float


def multipliers(keys: ConfigKeys) -> Multipliers:
    """Read the config's. Raises CheckpointError."""
    found = Multipliers(*(keys.number(key, 1.0) for key in MULTIPLIERS))
    if found.logits <= 0:
        raise CheckpointError(
            f"config.json has logits_scaling = {found.logits}, which must be above 0"
        )
    return found


FAMILY = Family(
    "granite", ("granite",), "Granite 3, 3.1, 3.3 (dense)", configure, own_types_only=True
)
