"""SmolLM3: Llama with every fourth layer unrotated, and windows there where the config asks.

Source: Bakouch et al. 2025, "SmolLM3: smol, multilingual, long-context reasoner", and Yang et al.
2025 (arXiv:2501.18795); names and config keys are those of Hugging Face's `SmolLM3ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys, windows_of
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "smollm3",
    (
        *DECODER,
        "attention_bias",
        "layer_types",
        "mlp_bias",
        "no_rope_layer_interval",
        "no_rope_layers",
        "sliding_window",
        "use_sliding_window",
    ),
    {**DECODER_OFF, **ignored("max_window_layers")},  # layer_types says it
)
_DEFAULTS = {
    "max_position_embeddings": 32768,
    "no_rope_layer_interval": 4,
    "rope_theta": 2000000.0,
    "tie_word_embeddings": True,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape, rotates = attention_shape(keys), _rotated_layers(keys)
    window = keys.whole_or_none("sliding_window") if keys.flag("use_sliding_window") else None
    windows = windows_of(keys, window, lambda index: not rotates[index])
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[replace(shape, window=window) for window in windows],
        rope=rope_of(keys.all, shape.head_dim),
        rotates=rotates,
        attention=biased_attention(keys),
        ffw=gated_ffw(keys, biased=keys.flag("mlp_bias")),
    )


def _rotated_layers(keys: ConfigKeys) -> list[bool]:
    """One flag per layer. Raises CheckpointError."""
    layers, given = keys.whole("num_hidden_layers"), keys.get("no_rope_layers")
    if given is None:
        interval = keys.whole("no_rope_layer_interval")
        return [(index + 1) % interval != 0 for index in range(layers)]
    # In spite of its name, 1 is a layer that rotates.
    if not isinstance(given, list) or len(given) < layers or any(n not in (0, 1) for n in given):
        raise CheckpointError(
            f"config.json has no_rope_layers = {given!r}; the smollm3 family needs a 0 or a 1 for "
            f"each of its {layers} layers"
        )
    return [bool(each) for each in given[:layers]]


FAMILY = Family("smollm3", ("smollm3",), "SmolLM3", configure, own_types_only=True)
