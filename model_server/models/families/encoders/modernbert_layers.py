"""Layers of ModernBERT, and the head of its classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.models.config_keys import ConfigKeys
from model_server.models.families.ropes import FULL, SLIDING, ropes_by_kind
from model_server.models.layers.attention import Attention, AttentionShape, AttentionSources
from model_server.models.layers.embedder import POOLINGS
from model_server.models.layers.feed_forward import GatedFeedForward
from model_server.models.layers.layers import Embedding, LayerNorm, Linear, Names, activation_of
from model_server.models.layers.rope import Rope
from model_server.models.layers.whole_decoder import WholeDecoder
from model_server.models.weights.source import Tensor, WeightSource, cut
from model_server.models.weights.weight import WeightForm
from sax.errors import CheckpointError

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


class PooledHead(nnx.Module):
    """An encoder with two layers over the pooled vector of each input."""

    def __init__(
        self, encoder: WholeDecoder, pooling: str, keys: ConfigKeys, labels: int, form: WeightForm
    ) -> None:
        size = keys.whole("hidden_size")
        kernel, bias = ("head.dense.weight",), ("head.dense.bias",)
        biased = keys.flag("classifier_bias")
        self.encoder = encoder
        self.pooling = pooling
        self.dense = Linear(
            size, size, (None, "embed"), kernel, form=form, bias=bias if biased else None
        )
        self.activation = activation_of(keys.get("classifier_activation", "gelu"))
        self.norm = layer_norm(keys, "head.norm")
        out, out_bias = ("classifier.weight",), ("classifier.bias",)
        self.out = Linear(labels, size, (None, "embed"), out, form=form, bias=out_bias)

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to logits f32[B, labels]."""
        there = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
        vectors = POOLINGS[self.pooling](self.encoder(tokens, lengths), there)
        return self.out(self.norm(self.activation(self.dense(vectors))))


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
