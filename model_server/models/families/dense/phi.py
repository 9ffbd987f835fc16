"""Phi-1, Phi-1.5, Phi-2: parallel halves behind one layer norm, biases everywhere.

Source: Gunasekar et al. 2023 (arXiv:2306.11644), Li et al. 2023 (arXiv:2309.05463); names and
config keys are those of Hugging Face's `PhiForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.decoder_recipe import decoder_recipe, plain_ffw
from model_server.models.families.gpt2 import norm_of
from model_server.models.families.llama import attention_shape
from model_server.models.families.ropes import partial_rope
from model_server.models.known_keys import DECODER, DECODER_OFF, KnownKeys
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.layers import LayerNorm, Linear
from model_server.models.layers.pre_norm import ParallelLayer
from model_server.models.recipe import Family, Recipe, serving
from model_server.models.weights.weight import WeightForm

KEYS = KnownKeys(
    "phi", (*DECODER, "layer_norm_eps", "partial_rotary_factor", "qk_layernorm"), DECODER_OFF
)
_DEFAULTS = {"hidden_act": "gelu_new", "max_position_embeddings": 2048}


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    keys.only("tie_word_embeddings", False)
    shape, ffw = attention_shape(keys), plain_ffw(keys, "fc1", "fc2", biased=True)
    epsilon = keys.number("layer_norm_eps", 1e-5)

    def layer(index: int, form: WeightForm) -> ParallelLayer:
        prefix = f"model.layers.{index}"
        return ParallelLayer(
            norm_of(shape.embed, f"{prefix}.input_layernorm", epsilon),
            _attention(keys, f"{prefix}.self_attn", shape, form),
            None,
            ffw(prefix, form),
        )

    rope = partial_rope(keys, shape.head_dim, share=0.5)
    return decoder_recipe(
        keys,
        serving(values, keys.whole("max_position_embeddings")),
        shape=shape,
        ropes=[rope] * keys.whole("num_hidden_layers"),
        layer=layer,
        norm=lambda _: norm_of(shape.embed, "model.final_layernorm", epsilon),
        head=lambda form: _head(keys, form),
    )


def _attention(keys: ConfigKeys, name: str, shape: AttentionShape, form: WeightForm) -> Attention:
    sources = AttentionSources.hugging_face(name, biased=True, out_biased=True, out="dense")
    if not keys.flag("qk_layernorm"):
        return Attention(shape, sources, form)
    q_norm, k_norm = (_head_norm(keys, f"{name}.{part}_layernorm", shape) for part in "qk")
    return Attention(shape, sources, form, q_norm=q_norm, k_norm=k_norm)


def _head_norm(keys: ConfigKeys, name: str, shape: AttentionShape) -> LayerNorm:
    return norm_of(shape.head_dim, name, keys.number("layer_norm_eps", 1e-5))


def _head(keys: ConfigKeys, form: WeightForm) -> Linear:
    vocab, embed = keys.whole("vocab_size"), keys.whole("hidden_size")
    source, bias = ("lm_head.weight",), ("lm_head.bias",)
    return Linear(vocab, embed, ("vocab", "embed"), source, form=form, bias=bias)


FAMILY = Family("phi", ("phi",), "Phi-1, Phi-1.5, Phi-2", configure)
