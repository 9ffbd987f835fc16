"""GPT-2: pre-norm decoder, learned positions, plain GELU, every projection biased.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; names and config
keys are those of Hugging Face's `GPT2LMHeadModel`, which stores projections as [in, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys, ignored
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.feed_forward import FeedForward
from model_server.models.layers.layers import Embedding, LayerNorm, Linear
from model_server.models.layers.positions import LearnedPositions, PositionedDecoder
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.recipe import Family, Recipe, head_cache, serving
from model_server.models.weights.source import Tensor, Transposed, WeightSource, cut
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# GPT-2 and GPT-J; a summary is a head for other tasks.
GPT = (
    "activation_function",
    "layer_norm_epsilon",
    "n_embd",
    "n_head",
    "n_inner",
    "n_layer",
    "n_positions",
    "tie_word_embeddings",
    "vocab_size",
)
SUMMARY = ignored(
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
)
KEYS = KnownKeys(
    "gpt2",
    (*GPT, "add_cross_attention", "scale_attn_by_inverse_layer_idx", "scale_attn_weights"),
    {**SUMMARY, **ignored("reorder_and_upcast_attn")},
)


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    keys = ConfigKeys(config, KEYS)
    keys.only("add_cross_attention", False)
    embed, heads, layers = (keys.whole(key) for key in ("n_embd", "n_head", "n_layer"))
    positions, vocab = keys.whole("n_positions", 1024), keys.whole("vocab_size")
    ffw, epsilon = keys.whole("n_inner", 4 * embed), keys.number("layer_norm_epsilon", 1e-5)
    activation = activation_of(keys.get("activation_function", "gelu_new"))
    head_dim = divided(embed, heads)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix, scale = f"transformer.h.{index}", _scale(keys, head_dim, index)
        shape = AttentionShape(
            embed=embed, heads=heads, kv_heads=heads, head_dim=head_dim, scale=scale
        )
        return PreNormLayer(
            norm_of(embed, f"{prefix}.ln_1", epsilon),
            Attention(shape, _attention_sources(f"{prefix}.attn", embed), form),
            norm_of(embed, f"{prefix}.ln_2", epsilon),
            _feed_forward(embed, ffw, f"{prefix}.mlp", activation, form),
        )

    def build(form: WeightForm) -> Decoder:
        return PositionedDecoder(
            embedding=Embedding(vocab, embed, ("transformer.wte.weight",), form=form),
            positions=LearnedPositions(positions, embed, ("transformer.wpe.weight",), form=form),
            layers=[layer(index, form) for index in range(layers)],
            final_norm=norm_of(embed, "transformer.ln_f", epsilon),
            head=_head(keys, vocab, embed, form),
            ropes=[None] * layers,
        )

    return Recipe(
        build=build,
        cache=head_cache(layers=layers, heads=heads, kv_heads=heads, head_dim=head_dim),
        embed=embed,
        vocab=vocab,
        **serving(values, positions),
    )


def divided(embed: int, heads: int) -> int:
    """Head size where the config gives none. Raises CheckpointError."""
    if embed % heads:
        raise CheckpointError(f"config.json: width {embed} does not divide into {heads} heads")
    return embed // heads


def norm_of(embed: int, name: str, epsilon: float) -> LayerNorm:
    return LayerNorm(embed, (f"{name}.weight",), (f"{name}.bias",), epsilon=epsilon)


def _scale(keys: ConfigKeys, head_dim: int, index: int) -> float:
    """Score scale of a layer; scores are f32, so `reorder_and_upcast_attn` has no effect."""
    scale = head_dim**-0.5 if keys.flag("scale_attn_weights", True) else 1.0
    return scale / (index + 1) if keys.flag("scale_attn_by_inverse_layer_idx") else scale


def _attention_sources(prefix: str, embed: int) -> AttentionSources:
    fused, bias = Transposed(Tensor(f"{prefix}.c_attn.weight")), Tensor(f"{prefix}.c_attn.bias")

    def third(part: WeightSource, index: int) -> WeightSource:
        return cut(part, index * embed, (index + 1) * embed, of=3 * embed)

    return AttentionSources(
        q=third(fused, 0),
        k=third(fused, 1),
        v=third(fused, 2),
        out=Transposed(Tensor(f"{prefix}.c_proj.weight")),
        biases=(third(bias, 0), third(bias, 1), third(bias, 2)),
        out_bias=(f"{prefix}.c_proj.bias",),
    )


def _feed_forward(
    embed: int, ffw: int, prefix: str, activation: Activation, form: WeightForm
) -> FeedForward:
    return FeedForward(
        embed,
        ffw,
        up=Transposed(Tensor(f"{prefix}.c_fc.weight")),
        down=Transposed(Tensor(f"{prefix}.c_proj.weight")),
        activation=activation,
        form=form,
        biases=((f"{prefix}.c_fc.bias",), (f"{prefix}.c_proj.bias",)),
    )


def _head(keys: ConfigKeys, vocab: int, embed: int, form: WeightForm) -> Linear | None:
    if keys.flag("tie_word_embeddings", True):
        return None
    return Linear(vocab, embed, ("vocab", "embed"), ("lm_head.weight",), form=form)


FAMILY = Family("gpt2", ("gpt2",), "GPT-2, DistilGPT2", configure)
