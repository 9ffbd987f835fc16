"""ModernBERT: an encoder with rotary positions, gated feed-forwards and windows in most layers.

Source: Warner et al. 2024 (arXiv:2412.13663); names and config keys are those of Hugging Face's
`ModernBertModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys, sliding_layers
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.known_keys import KnownKeys, ignored, one_of
from model_server.models.layers.activations import activation_of
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.embedder import (
    POOLINGS,
    EmbedderFamily,
    EmbedRecipe,
    TokenHead,
    embedding,
)
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import Embedding, LayerNorm, Linear, Names
from model_server.models.layers.pre_norm import PreNormLayer
from model_server.models.layers.rope import Rope
from model_server.models.layers.whole_decoder import WholeDecoder
from model_server.models.weights.source import Tensor, WeightSource, cut
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

# Layers of ModernBERT, and the head of its classifiers.

_GLOBAL_BASE, _LOCAL_BASE = 160_000.0, 10_000.0


class Unchanged(nnx.Module):
    """In place of the first layer's first norm: the embedding has one already."""

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class NormedEmbedding(nnx.Module):
    def __init__(self, table: Embedding, norm: LayerNorm) -> None:
        self.table = table
        self.norm = norm

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.norm(self.table(tokens))


class LabelHead(nnx.Module):
    """Two layers over a vector, of an input or of a token."""

    def __init__(self, keys: ConfigKeys, labels: int, form: WeightForm) -> None:
        size = keys.whole("hidden_size")
        kernel, bias = ("head.dense.weight",), ("head.dense.bias",)
        biased = keys.flag("classifier_bias")
        self.dense = Linear(
            size, size, (None, "embed"), kernel, form=form, bias=bias if biased else None
        )
        self.activation = activation_of(keys.get("classifier_activation", "gelu"))
        self.norm = layer_norm(keys, "head.norm")
        out, out_bias = ("classifier.weight",), ("classifier.bias",)
        self.out = Linear(labels, size, (None, "embed"), out, form=form, bias=out_bias)

    def __call__(self, vectors: jax.Array) -> jax.Array:
        """Maps f32[N, D] to logits f32[N, labels]."""
        return self.out(self.norm(self.activation(self.dense(vectors))))


class PooledHead(nnx.Module):
    """An encoder with a head over the pooled vector of each input."""

    over_inputs = ("head",)

    def __init__(self, encoder: WholeDecoder, pooling: str, head: LabelHead) -> None:
        self.encoder = encoder
        self.pooling = pooling
        self.head = head

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to logits f32[B, labels]."""
        there = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        return self.head(POOLINGS[self.pooling](self.encoder(tokens, lengths), there))


def fused_attention(
    keys: ConfigKeys, prefix: str, shape: AttentionShape, form: WeightForm
) -> Attention:
    q, k, v = _parts(f"{prefix}.Wqkv.weight", shape.embed, 3)
    biased = keys.flag("attention_bias")
    sources = AttentionSources(q=q, k=k, v=v, out=(f"{prefix}.Wo.weight",))
    if biased:
        of_q, of_k, of_v = _parts(f"{prefix}.Wqkv.bias", shape.embed, 3)
        out_bias = (f"{prefix}.Wo.bias",)
        sources = replace(sources, biases=(of_q, of_k, of_v), out_bias=out_bias)
    return Attention(shape, sources, form)


def fused_ffw(keys: ConfigKeys, prefix: str, form: WeightForm) -> GatedFeedForward:
    size = keys.whole("intermediate_size")
    gate, up = _parts(f"{prefix}.Wi.weight", size, 2)
    biases: tuple[Names, Names, Names] | None = None
    if keys.flag("mlp_bias"):
        of_gate, of_up = _parts(f"{prefix}.Wi.bias", size, 2)
        biases = (of_gate, of_up, (f"{prefix}.Wo.bias",))
    return GatedFeedForward(
        keys.whole("hidden_size"),
        size,
        gate=gate,
        up=up,
        down=(f"{prefix}.Wo.weight",),
        activation=activation_of(keys.get("hidden_activation", "gelu")),
        form=form,
        biases=biases,
    )


def _parts(name: str, rows: int, count: int) -> list[WeightSource]:
    """Return the sources of equal parts that one tensor holds below each other."""
    fused = Tensor(name)
    return [cut(fused, i * rows, (i + 1) * rows, of=count * rows) for i in range(count)]


def layer_norm(keys: ConfigKeys, name: str) -> LayerNorm:
    bias = (f"{name}.bias",) if keys.flag("norm_bias") else None
    epsilon = keys.number("norm_eps", 1e-5)
    return LayerNorm(keys.whole("hidden_size"), (f"{name}.weight",), bias, epsilon=epsilon)


def attention_shape(keys: ConfigKeys) -> AttentionShape:
    embed, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    if embed % heads:
        raise CheckpointError(f"hidden_size {embed} does not divide into {heads} heads")
    size = embed // heads
    return AttentionShape(embed=embed, heads=heads, kv_heads=heads, head_dim=size, scale=size**-0.5)


def ropes_of(keys: ConfigKeys, head_dim: int) -> dict[str, Rope]:
    """Return the rope of each kind of layer; older files stretch both alike."""
    bases = {
        FULL: keys.number("global_rope_theta", _GLOBAL_BASE),
        SLIDING: keys.number("local_rope_theta", _LOCAL_BASE),
    }
    stretch = keys.get("rope_scaling")
    given = keys.get("rope_parameters") or {FULL: stretch, SLIDING: stretch}
    if not isinstance(given, Mapping):
        raise CheckpointError(f"config.json has rope_parameters = {given!r}; it must be an object")
    return ropes_by_kind(keys, head_dim, given, bases)


KEYS = KnownKeys(
    "modernbert",
    (
        "attention_bias",
        "classifier_activation",
        "classifier_bias",
        "classifier_pooling",
        "global_attn_every_n_layers",
        "global_rope_theta",
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "local_attention",
        "local_rope_theta",
        "max_position_embeddings",
        "mlp_bias",
        "norm_bias",
        "norm_eps",
        "num_attention_heads",
        "num_hidden_layers",
        "rope_parameters",
        "rope_scaling",
        "vocab_size",
    ),
    {
        # Of training, of its head for masked tokens, and of kernels; `norm_eps` is the epsilon.
        **ignored(
            "decoder_bias",
            "deterministic_flash_attn",
            "embedding_dropout",
            "initializer_cutoff_factor",
            "layer_norm_eps",
            "mlp_dropout",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            "sparse_prediction",
            "tie_word_embeddings",
        ),
        "position_embedding_type": one_of("absolute"),
        "rope_theta": one_of(10000.0),  # added where ropes are given by kind of layer
    },
)
_DEFAULTS = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
}
_HEADS = ("head.", "decoder.", "classifier.")
_POOLINGS = ("cls", "mean")  # of its classifiers


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> EmbedRecipe:
    keys = ConfigKeys(config, KEYS, _DEFAULTS)
    build, pooling = _encoder(keys), keys.only("classifier_pooling", *_POOLINGS)

    def classifier(form: WeightForm, labels: int) -> PooledHead:
        return PooledHead(build(form), pooling, LabelHead(keys, labels, form))

    def tagger(form: WeightForm, labels: int) -> TokenHead:
        return TokenHead(build(form), LabelHead(keys, labels, form))

    return EmbedRecipe(
        build=build,
        build_classifier=classifier,
        build_tagger=tagger,
        embed=keys.whole("hidden_size"),
        vocab=keys.whole("vocab_size"),
        unused=_HEADS,
        unused_in_classes=("decoder.",),
        **embedding(values, keys.whole("max_position_embeddings")),
    )


def _encoder(keys: ConfigKeys) -> Callable[[WeightForm], WholeDecoder]:
    every, window = keys.whole("global_attn_every_n_layers"), keys.whole("local_attention")
    slides = sliding_layers(keys, lambda index: index % every != 0)
    shape = attention_shape(keys)
    ropes = ropes_of(keys, shape.head_dim)

    def layer(index: int, form: WeightForm) -> PreNormLayer:
        prefix = f"model.layers.{index}"
        own = replace(shape, window=window if slides[index] else None)
        return PreNormLayer(
            layer_norm(keys, f"{prefix}.attn_norm") if index else Unchanged(),
            fused_attention(keys, f"{prefix}.attn", own, form),
            layer_norm(keys, f"{prefix}.mlp_norm"),
            fused_ffw(keys, f"{prefix}.mlp", form),
        )

    def build(form: WeightForm) -> WholeDecoder:
        names = ("model.embeddings.tok_embeddings.weight",)
        table = Embedding(keys.whole("vocab_size"), shape.embed, names, form=form)
        decoder = Decoder(
            embedding=NormedEmbedding(table, layer_norm(keys, "model.embeddings.norm")),  # pyright: ignore[reportArgumentType]
            layers=[layer(index, form) for index in range(len(slides))],
            final_norm=layer_norm(keys, "model.final_norm"),
            head=None,
            ropes=[ropes[SLIDING if slide else FULL] for slide in slides],
        )
        return WholeDecoder(decoder, causal=False)

    return build


FAMILY = EmbedderFamily("modernbert", ("modernbert",), "ModernBERT", configure)
