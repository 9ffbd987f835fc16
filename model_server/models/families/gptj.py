"""GPT-J: parallel halves behind one norm; part of each head is rotated in neighbouring pairs.

Source: Wang and Komatsuzaki 2021, "GPT-J-6B"; names and config keys are those of Hugging Face's
`GPTJForCausalLM`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.gpt2 import GPT, SUMMARY, divided, norm_of
from model_server.models.known_keys import KnownKeys, one_of
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.layers.pre_norm import ParallelLayer
from model_server.models.layers.rope import rope_of
from model_server.models.recipe import Family, Recipe, head_cache, serving
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

KEYS = KnownKeys(
    "gptj",
    (*GPT, "head_dim", "rotary_dim"),
    {**SUMMARY, "rotary": one_of(True), "scale_attn_weights": one_of(True)},
)
_ROPE_THETA = 10000.0


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS, {"rotary_dim": 64})
    keys.only("tie_word_embeddings", False)
    shape, layers = _attention_shape(keys), keys.whole("n_layer")
    embed, vocab = shape.embed, keys.whole("vocab_size")
    ffw, epsilon = keys.whole("n_inner", 4 * embed), keys.number("layer_norm_epsilon", 1e-5)
    activation = activation_of(keys.get("activation_function", "gelu_new"))
    rope = rope_of({}, _rotated(keys, shape.head_dim), theta=_ROPE_THETA, interleaved=True)

    def layer(index: int, form: WeightForm) -> ParallelLayer:
        prefix = f"transformer.h.{index}"
        sources = AttentionSources.hugging_face(f"{prefix}.attn", out="out_proj")
        names = f"{prefix}.mlp.fc_in", f"{prefix}.mlp.fc_out"
        return ParallelLayer(
            norm_of(embed, f"{prefix}.ln_1", epsilon),
            Attention(shape, sources, form),
            None,
            biased_ffw(embed, ffw, names, activation, form),
        )

    def build(form: WeightForm) -> Decoder:
        return Decoder(
            embedding=Embedding(vocab, embed, ("transformer.wte.weight",), form=form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=norm_of(embed, "transformer.ln_f", epsilon),
            head=_head(vocab, embed, form),
            ropes=[rope] * layers,
        )

    return Recipe(
        build=build,
        cache=head_cache(
            layers=layers, heads=shape.heads, kv_heads=shape.heads, head_dim=shape.head_dim
        ),
        embed=embed,
        vocab=vocab,
        **serving(values, keys.whole("n_positions", 2048)),
    )


def _attention_shape(keys: ConfigKeys) -> AttentionShape:
    embed, heads = keys.whole("n_embd"), keys.whole("n_head")
    # Published configs have no head_dim; Saxml's class may set one.
    head_dim = keys.whole("head_dim") if keys.get("head_dim") else divided(embed, heads)
    return AttentionShape(
        embed=embed, heads=heads, kv_heads=heads, head_dim=head_dim, scale=head_dim**-0.5
    )


def biased_ffw(
    embed: int, ffw: int, names: tuple[str, str], activation: Activation, form: WeightForm
) -> FeedForward:
    up, down = names
    return FeedForward(
        embed,
        ffw,
        up=(f"{up}.weight",),
        down=(f"{down}.weight",),
        activation=activation,
        form=form,
        biases=((f"{up}.bias",), (f"{down}.bias",)),
    )


def _head(vocab: int, embed: int, form: WeightForm) -> Linear:
    source, bias = ("lm_head.weight",), ("lm_head.bias",)
    return Linear(vocab, embed, ("vocab", "embed"), source, form=form, bias=bias)


def _rotated(keys: ConfigKeys, head_dim: int) -> int:
    rotated = keys.whole("rotary_dim")
    if rotated % 2 or rotated > head_dim:
        raise CheckpointError(
            f"config.json has rotary_dim = {rotated}: the gptj family rotates an even part of "
            f"a head of {head_dim}"
        )
    return rotated


FAMILY = Family("gptj", ("gptj",), "GPT-J", configure)
