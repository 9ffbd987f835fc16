"""Gemma: Llama with scaled embeddings, norm scales stored minus one, GELU and heads of 256.

Source: Mesnard et al. 2024 (arXiv:2403.08295); names and config keys are those of Hugging Face's
`GemmaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

GEMMA = (*DECODER, "attention_bias", "hidden_activation", "use_bidirectional_attention")
KEYS = KnownKeys("gemma", GEMMA, DECODER_OFF)
_TANH, _OTHER_GELUS = "gelu_pytorch_tanh", ("gelu", "gelu_new", "gelu_fast")
_DEFAULTS = {"head_dim": 256, "max_position_embeddings": 8192}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("use_bidirectional_attention", False)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim),
        attention=biased_attention(keys),
        ffw=gated_ffw(keys, activation_name(keys)),
        plus_one=True,
        tied=True,
        embedding_scale=embedding_scale(keys),
    )


def activation_name(keys: ConfigKeys) -> str:
    """The config's activation; early checkpoints say `gelu` but mean the tanh approximation.

    Raises CheckpointError for any other than a GELU: with `silu` it is a model like Llama, whose
    tensors have the same names. And for two, of which transformers takes one or the other.
    """
    older, newer = (
        keys.get(key) and keys.only(key, _TANH, *_OTHER_GELUS)
        for key in ("hidden_act", "hidden_activation")
    )
    older = _TANH if older == "gelu" else older
    if older and newer and older != newer:
        raise CheckpointError(
            f"config.json has hidden_act = {older!r} and hidden_activation = {newer!r}; remove the "
            "one that the model was not trained with"
        )
    return newer or older or _TANH


def embedding_scale(keys: ConfigKeys) -> Any:
    """Square root of the width, rounded to the weights' dtype as in training."""
    exact = keys.whole("hidden_size") ** 0.5

    def rounded(form: WeightForm) -> float:
        return float(np.asarray(exact).astype(form.dtype))

    return rounded


FAMILY = Family("gemma", ("gemma",), "Gemma", configure)
