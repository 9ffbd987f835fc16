"""HyperCLOVA X SEED: Granite's multipliers, and norms behind each half of a layer as well.

Source: NAVER 2025, "HyperCLOVA X SEED Think"; names and config keys are those of Hugging Face's
`HyperCLOVAXForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import (
    decoder_recipe,
    gated_ffw,
    pre_norm_recipe,
    rms_norms,
)
from model_server.models.families.dense.granite import MULTIPLIERS, multipliers
from model_server.models.families.llama import attention_shape, biased_attention
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.pre_norm import SandwichNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "hyperclovax",
    (*DECODER, *MULTIPLIERS, "attention_bias", "mlp_bias", "use_post_norm"),
    DECODER_OFF,
)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, {"max_position_embeddings": 2048})
    plain, by = attention_shape(keys), multipliers(keys)
    shape = replace(plain, scale=keys.number("attention_multiplier", plain.scale))
    served = serving(values, keys.whole("max_position_embeddings"))
    rope, layers = rope_of(keys.all, shape.head_dim), keys.whole("num_hidden_layers")
    attention = biased_attention(keys)
    ffw, norm = gated_ffw(keys, biased=keys.flag("mlp_bias")), rms_norms(keys)
    # Unlike Granite's the logits are multiplied.
    scales: dict[str, Any] = {
        "embedding_scale": lambda form: by.embedding,
        "logits_scale": by.logits,
    }
    if not keys.flag("use_post_norm", True):
        return pre_norm_recipe(
            keys,
            served,
            shapes=[shape] * layers,
            rope=rope,
            attention=attention,
            ffw=ffw,
            scale=by.layers,
            **scales,
        )

    def layer(index: int, form: WeightForm) -> SandwichNormLayer:
        prefix = f"model.layers.{index}"
        return SandwichNormLayer(
            norm(f"{prefix}.input_layernorm"),
            attention(prefix, shape, form),
            norm(f"{prefix}.post_norm1"),
            norm(f"{prefix}.post_attention_layernorm"),
            ffw(prefix, form),
            norm(f"{prefix}.post_norm2"),
            scale=by.layers,
        )

    return decoder_recipe(keys, served, shape=shape, ropes=[rope] * layers, layer=layer, **scales)


FAMILY = Family(
    "hyperclovax", ("hyperclovax",), "HyperCLOVA X SEED", configure, own_types_only=True
)
