"""Llama 1/2/3, SmolLM: pre-norm decoder, rotary positions, grouped queries, gated SiLU.

Source: Touvron et al. 2023 (arXiv:2302.13971, arXiv:2307.09288); names and config keys are those
of Hugging Face's `LlamaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import gated_ffw, pre_norm_recipe
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys("llama", (*DECODER, "attention_bias", "mlp_bias"), DECODER_OFF)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS)
    shape, biased = attention_shape(keys), keys.flag("attention_bias")

    def attention(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        place = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(place, biased=biased, out_biased=biased)
        return Attention(shape, sources, form)

    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings", 2048)),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim, context=values["MAX_CONTEXT"]),
        attention=attention,
        ffw=gated_ffw(keys, biased=keys.flag("mlp_bias")),
    )


def attention_shape(
    keys: ConfigKeys, *, window: int | None = None, softcap: float | None = None
) -> AttentionShape:
    """Attention shape from the config; scores are scaled by the head size."""
    heads, embed = keys.whole("num_attention_heads"), keys.whole("hidden_size")
    head_dim = keys.whole("head_dim", embed // heads)
    return AttentionShape(
        embed=embed,
        heads=heads,
        kv_heads=keys.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window=window,
        softcap=softcap,
    )
