"""Llama 1/2/3, SmolLM: pre-norm decoder, rotary positions, grouped queries, gated SiLU.

Source: Touvron et al. 2023 (arXiv:2302.13971, arXiv:2307.09288); names and config keys are those
of Hugging Face's `LlamaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import embedding_of, head_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import RmsNorm, activation_of
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Recipe, head_cache, serving
from model_server.models.weights.weight import WeightForm


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, "llama")
    shape = attention_shape(keys)
    layers, rope = (
        keys.whole("num_hidden_layers"),
        rope_of(keys.all, shape.head_dim, context=values["MAX_CONTEXT"]),
    )
    ffw, activation = keys.whole("intermediate_size"), activation_of(keys.get("hidden_act", "silu"))
    epsilon = keys.number("rms_norm_eps", 1e-6)
    biased, ffw_biased = keys.flag("attention_bias"), keys.flag("mlp_bias")

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        sources = AttentionSources.hugging_face(
            f"{prefix}.self_attn", biased=biased, out_biased=biased
        )
        return PreNormLayer(
            RmsNorm(shape.embed, (f"{prefix}.input_layernorm.weight",), epsilon=epsilon),
            Attention(shape, sources, form),
            RmsNorm(shape.embed, (f"{prefix}.post_attention_layernorm.weight",), epsilon=epsilon),
            GatedFeedForward.hugging_face(
                shape.embed,
                ffw,
                f"{prefix}.mlp",
                activation=activation,
                form=form,
                biased=ffw_biased,
            ),
        )

    def build(form: WeightForm) -> Decoder:
        return Decoder(
            embedding=embedding_of(keys, form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=RmsNorm(shape.embed, ("model.norm.weight",), epsilon=epsilon),
            head=head_of(keys, form),
            ropes=[rope] * layers,
        )

    return Recipe(
        build=build,
        cache=head_cache(
            layers=layers, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim
        ),
        embed=shape.embed,
        vocab=keys.whole("vocab_size"),
        **serving(values, keys.whole("max_position_embeddings", 2048)),
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
