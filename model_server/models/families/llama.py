"""Llama 1/2/3, SmolLM: pre-norm decoder, rotary positions, grouped queries, gated SiLU.

Source: Touvron et al. 2023 (arXiv:2302.13971, arXiv:2307.09288); names and config keys are those
of Hugging Face's `LlamaForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import BuildAttention, gated_ffw, pre_norm_recipe
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys, one_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "llama",
    (*DECODER, "attention_bias", "mlp_bias"),
    {**DECODER_OFF, "use_sliding_window": one_of(False)},  # of IQuest-Coder
)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS)
    shape = attention_shape(keys)
    return pre_norm_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings", 2048)),
        shapes=[shape] * keys.whole("num_hidden_layers"),
        rope=rope_of(keys.all, shape.head_dim, context=values["MAX_CONTEXT"]),
        attention=biased_attention(keys),
        ffw=gated_ffw(keys, biased=keys.flag("mlp_bias")),
    )


def biased_attention(
    keys: ConfigKeys, bias: str = "attention_bias", out_bias: str | None = None
) -> BuildAttention:
    """Biases as config.json has them under these keys; out_bias: None: under the same."""
    biased = keys.flag(bias)
    out_biased = keys.flag(out_bias or bias)

    def build(prefix: str, shape: AttentionShape, form: WeightForm) -> Attention:
        name = f"{prefix}.self_attn"
        sources = AttentionSources.hugging_face(name, biased=biased, out_biased=out_biased)
        return Attention(shape, sources, form)

    return build


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


FAMILY = Family(
    "llama",
    ("llama", "iquestcoder"),
    "Llama 1, 2, 3 and 3.1, SmolLM, IQuest-Coder",
    configure,
)
