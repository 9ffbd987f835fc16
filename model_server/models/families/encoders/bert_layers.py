"""BERT's layers, and the head of its classifiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.whole import attend_among
from model_server.models.config_keys import ConfigKeys
from model_server.models.known_keys import KnownKeys
from model_server.models.layers.activations import Activation, activation_of
from model_server.models.layers.attention import AttentionSources
from model_server.models.layers.layers import Embedding, LayerNorm, Linear, live_of, run_layer
from model_server.models.media.tower_layer import TowerAttention, dense, plain_ffw
from model_server.models.weights.weight import WeightForm, weight
from sax.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    prefix: str  # of the tensor names: "" or "bert."
    layers: int
    embed: int
    ffw: int
    heads: int
    vocab: int
    positions: int
    first_position: int  # of a text's first token
    token_types: int
    activation: Activation
    epsilon: float

    @classmethod
    def from_hf(
        cls,
        config: Mapping[str, Any] | None,
        known: KnownKeys,
        *,
        submodule: str = "bert",
        bare: str = "BertModel",
        first_position: int = 0,
    ) -> BertConfig:
        """Parse `config.json`. Raises CheckpointError for unsupported settings.

        submodule: the encoder in task-specific models. bare: the architecture without a task.
        """
        keys = ConfigKeys(config, known)
        keys.only("position_embedding_type", "absolute")
        keys.only("is_decoder", False)
        heads, embed = keys.whole("num_attention_heads"), keys.whole("hidden_size")
        if embed % heads:
            raise CheckpointError(f"hidden_size {embed} does not divide into {heads} heads")
        return cls(
            prefix="" if keys.get("architectures", [bare]) == [bare] else f"{submodule}.",
            layers=keys.whole("num_hidden_layers"),
            embed=embed,
            ffw=keys.whole("intermediate_size"),
            heads=heads,
            vocab=keys.whole("vocab_size"),
            positions=keys.whole("max_position_embeddings", 512, least=first_position + 1),
            first_position=first_position,
            token_types=keys.whole("type_vocab_size", 2),
            activation=activation_of(keys.get("hidden_act", "gelu")),
            epsilon=keys.number("layer_norm_eps", 1e-12),
        )


class SelfAttention(TowerAttention):
    """Bidirectional attention over the tokens of one input."""

    def __init__(self, config: BertConfig, prefix: str, form: WeightForm) -> None:
        parts = [dense(f"{prefix}.self.{part}") for part in ("query", "key", "value")]
        (q, of_q), (k, of_k), (v, of_v) = parts
        out, out_bias = dense(f"{prefix}.output.dense")
        sources = AttentionSources(
            q=q, k=k, v=v, out=out, biases=(of_q, of_k, of_v), out_bias=out_bias
        )
        super().__init__(config.embed, config.heads, sources, form, axis="heads")

    def mixed(self, q: jax.Array, k: jax.Array, v: jax.Array, seen: jax.Array) -> jax.Array:
        """seen: bool[B, T], True where there is a token. All queries are computed at once."""
        if (live := live_of(self)) is not None:
            return attend_among(q, k, v, seen.sum(1, dtype=jnp.int32), live)
        scores = jnp.einsum("bthq,bshq->bhts", q, k, preferred_element_type=jnp.float32)
        scores = jnp.where(seen[:, None, None, :], scores * q.shape[-1] ** -0.5, -jnp.inf)
        weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
        return jnp.einsum("bhts,bshq->bthq", weights, v, preferred_element_type=jnp.float32)


class BertLayer(nnx.Module):
    """Attention and feed-forward, each followed by a norm over its residual sum."""

    def __init__(self, config: BertConfig, index: int, form: WeightForm) -> None:
        prefix = f"{config.prefix}encoder.layer.{index}"
        up, down = f"{prefix}.intermediate.dense", f"{prefix}.output.dense"
        self.attention = SelfAttention(config, f"{prefix}.attention", form)
        self.after_attention = _norm(config, f"{prefix}.attention.output.LayerNorm")
        self.ffw = plain_ffw(config.embed, config.ffw, up, down, config.activation, form)
        self.after_ffw = _norm(config, f"{prefix}.output.LayerNorm")

    def __call__(self, x: jax.Array, there: jax.Array) -> jax.Array:
        _, x = self.after_attention.of_sum(x, self.attention(x, there))
        return self.after_ffw.of_sum(x, self.ffw(x))[1]


class Bert(nnx.Module):
    def __init__(self, config: BertConfig, form: WeightForm) -> None:
        prefix, size = f"{config.prefix}embeddings", config.embed
        names = (f"{prefix}.word_embeddings.weight",)
        self.embedding = Embedding(config.vocab, size, names, form=form)
        self.positions = weight(
            (config.positions, size),
            (None, "embed"),
            (f"{prefix}.position_embeddings.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        self.token_types = weight(
            (config.token_types, size),
            (None, "embed"),
            (f"{prefix}.token_type_embeddings.weight",),
            dtype=jnp.float32,
            spread=0.02,
        )
        self.first_position = config.first_position
        self.first_norm = _norm(config, f"{prefix}.LayerNorm")
        self.layers = nnx.List([BertLayer(config, index, form) for index in range(config.layers)])

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to f32[B, T, D], garbage past each length.

        segments: i32[B, T], the token types; None: a single text, which is entirely of type 0.
        """
        rows, columns = tokens.shape
        there = jnp.arange(columns)[None, :] < lengths[:, None]
        added = self.positions[...][self.first_position :][:columns]
        x = self.embedding(tokens.reshape(-1)) + jnp.tile(added, (rows, 1))
        x = self.first_norm(x + self._types(segments))
        for layer in self.layers:
            x = run_layer(layer, x, there)
        return x.reshape(rows, columns, -1)

    def _types(self, segments: jax.Array | None) -> jax.Array:
        types = self.token_types[...]
        if segments is None or types.shape[0] == 1:
            return types[:1]
        return types.at[segments.reshape(-1)].get(mode="clip")


class FirstTokenHead(nnx.Module):
    """An encoder with two layers over the first token of each input: tanh, then a label each."""

    over_inputs = ("dense", "out")

    def __init__(
        self, encoder: Bert, embed: int, labels: int, names: tuple[str, str], form: WeightForm
    ) -> None:
        """names: of the two layers."""
        inner, out = map(dense, names)
        self.encoder = encoder
        self.dense = Linear(embed, embed, (None, "embed"), inner[0], form=form, bias=inner[1])
        self.out = Linear(labels, embed, (None, "embed"), out[0], form=form, bias=out[1])

    def __call__(
        self, tokens: jax.Array, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T], lengths i32[B] and segments i32[B, T] to logits f32[B, labels]."""
        first = self.encoder(tokens, lengths, segments)[:, 0]
        return self.out(jnp.tanh(self.dense(first)))


def _norm(config: BertConfig, name: str) -> LayerNorm:
    return LayerNorm(config.embed, *dense(name), epsilon=config.epsilon)
