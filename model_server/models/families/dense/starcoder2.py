"""StarCoder2: biases everywhere, layer norms, a plain feed-forward, and a window in every layer.

Source: Lozhkov et al. 2024 (arXiv:2402.19173); names and config keys are those of Hugging Face's
`Starcoder2ForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import plain_ffw, pre_norm_recipe
from model_server.models.families.gpt2 import norm_of
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, ignored, one_of
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving

# The first files say some settings twice, by the names that they had in training.
KEYS = KnownKeys(
    "starcoder2",
    (*DECODER, "norm_epsilon", "sliding_window", "use_bias"),
    {
        **DECODER_OFF,
        **ignored(
            "activation_function",
            "attention_softmax_in_fp32",
            "embedding_dropout",
            "layer_norm_epsilon",
            "residual_dropout",
            "scale_attention_softmax_in_fp32",
        ),
        "mlp_type": one_of("default"),
        "norm_type": one_of("layer_norm"),
        "scale_attn_weights": one_of(True),
    },
)
_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "use_bias": True,
}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    shape = replace(attention_shape(keys), window=keys.whole_or_none("sliding_window"))
    epsilon = keys.number("norm_epsilon", 1e-5)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        norm=lambda name: norm_of(shape.embed, name, epsilon),
        attention=biased_attention(keys, "use_bias"),
        ffw=plain_ffw(keys, "c_fc", "c_proj", biased=keys.flag("use_bias")),
    )


FAMILY = Family("starcoder2", ("starcoder2",), "StarCoder2", configure)
