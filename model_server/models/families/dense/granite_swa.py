"""Granite with windows and attention sinks: Granite 3 whose layers may each have a rope base.

Source: IBM 2026, "Granite Swash"; names and config keys are those of Hugging Face's
`GraniteSWAForCausalLM`; `experts/granitemoe_swa.py` has the models with experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import (
    BuildAttention,
    BuildFfw,
    gated_ffw,
    pre_norm_recipe,
)
from model_server.models.families.dense.granite import MULTIPLIERS, multipliers
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import settings_of
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.rope import Rope, rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

WINDOWED = (
    *DECODER,
    *MULTIPLIERS,
    "attention_bias",
    "layer_rope_theta",
    "layer_types",
    "sliding_window",
)
KEYS = KnownKeys("granite_swa", (*WINDOWED, "mlp_bias"), DECODER_OFF)
DEFAULTS = {
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "tie_word_embeddings": True,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, DEFAULTS)
    return windowed_recipe(keys, values, gated_ffw(keys, biased=keys.flag("mlp_bias")))


def windowed_recipe(keys: ConfigKeys, values: Mapping[str, Any], ffw: BuildFfw) -> Recipe:
    by = multipliers(keys)
    shape = replace(attention_shape(keys), scale=by.scores)
    windows = windows_of(keys, keys.whole("sliding_window"), lambda index: index % 4 != 0)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window) for window in windows],
        rope=_ropes(keys, shape.head_dim, len(windows)),
        attention=_attention(keys),
        ffw=ffw,
        scale=by.layers,
        embedding_scale=lambda form: by.embedding,
        logits_scale=1 / by.logits,
    )


def _ropes(keys: ConfigKeys, head_dim: int, layers: int) -> list[Rope | None]:
    """Read each layer's; a base of 0 is no position. Raises CheckpointError."""
    bases = keys.get("layer_rope_theta")
    if bases is None:
        return [rope_of(keys.all, head_dim)] * layers
    listed = isinstance(bases, list) and len(bases) == layers
    if not listed or not all(type(base) in (int, float) and base >= 0 for base in bases):
        raise CheckpointError(
            f"config.json has layer_rope_theta = {bases!r}; the {keys.family} family needs a "
            f"number of at least 0 for each of {layers} layers"
        )
    given = settings_of(keys)

    def rope(base: float) -> Rope | None:
        theta = {"rope_theta": base}
        settings = keys.all | theta | {"rope_parameters": given | theta}
        return rope_of(settings, head_dim) if base else None

    return list(map(rope, bases))


def _attention(keys: ConfigKeys) -> BuildAttention:
    biased = keys.flag("attention_bias")

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=biased)
        return Attention(shape, replace(sources, sinks=(f"{name}.sinks",)), form)

    return build


FAMILY = Family(
    "granite_swa", ("granite_swa",), "Granite Swash (dense)", configure, own_types_only=True
)
