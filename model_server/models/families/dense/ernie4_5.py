"""ERNIE 4.5 (dense): Llama that rotates neighbouring dimensions of a head, with a tied head.

Source: Baidu 2025, "ERNIE 4.5 Technical Report"; names and config keys are those of Hugging Face's
`Ernie4_5ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

KEYS = KnownKeys("ernie4_5", (*DECODER, "use_bias"), DECODER_OFF)
_DEFAULTS = {
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim, interleaved=True),
        attention=biased_attention(keys, "use_bias"),
        ffw=gated_ffw(keys, biased=keys.flag("use_bias")),
    )


FAMILY = Family("ernie4_5", ("ernie4_5",), "ERNIE 4.5 (dense)", configure, own_types_only=True)
