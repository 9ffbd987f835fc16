"""Draft heads: a few layers that predict the token after the next from a model's hidden states.

A head is called with tokens and with the hidden state before each. It returns hidden states that it
takes itself for the next draft tokens, and maps them to tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers.layers import Embedding, Linear, RmsNorm, run_layer, sum_and_norm
from model_server.models.layers.rope import Rope, Rotary
from model_server.models.weights.source import Tensor
from model_server.models.weights.weight import weight

Written = tuple[LayerPages, ...]


class PredictionHead(nnx.Module):
    """Layers for multi-token prediction (DeepSeek-AI 2024, arXiv:2412.19437, section 2.2).

    Embedding and head are the model's. The hidden states that it takes are the model's last ones,
    normalised; its own are normalised as well.
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        token_norm: nnx.Module,
        hidden_norm: nnx.Module,
        projection: Linear,  # [D, 2 * D]
        hidden_first: bool = False,  # of what is projected
        layers: Sequence[nnx.Module],
        ropes: Sequence[Rope | None],
        final_norm: nnx.Module,
        head: Linear | None,  # None: tied to the embedding
    ) -> None:
        self.embedding = embedding
        self.token_norm = token_norm
        self.hidden_norm = hidden_norm
        self.projection = projection
        self.hidden_first = hidden_first
        self.layers = nnx.List(list(layers))
        self.ropes = tuple(ropes)
        self.final_norm = final_norm
        self.head = head

    def kept(self, hidden: jax.Array) -> jax.Array:
        """Map what a step shows, f32[T, W], to what is kept of each token, f32[T, D]."""
        return hidden

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        before: jax.Array,  # f32[T, D]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
    ) -> tuple[jax.Array, Written]:
        """Returns hidden states f32[T, D] and the pages with the new tokens written."""
        token = self.token_norm(_embedded(self.embedding, tokens, positions))
        parts = [token, self.hidden_norm(before)]
        x = self.projection(jnp.concatenate(parts[:: -1 if self.hidden_first else 1], axis=-1))
        rotations = {rope: rope and rope.at(positions) for rope in dict.fromkeys(self.ropes)}
        written: list[LayerPages] = []
        for layer, rope, held in zip(self.layers, self.ropes, pages, strict=True):
            x, held = run_layer(layer, x, rotations[rope], held, batch)
            written.append(held)
        return self.final_norm(x), tuple(written)

    def tokens(self, hidden: jax.Array) -> jax.Array:
        """Map f32[R, D] to the likeliest token of each row, i32[R]."""
        head = self.embedding.logits if self.head is None else self.head
        return jnp.argmax(head(hidden), axis=-1).astype(jnp.int32)


def _embedded(embedding: Embedding, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    """Return f32[T, D]; the first token of a text counts as nothing, as heads are served."""
    return jnp.where((positions > 0)[:, None], embedding(tokens), 0.0)


class EagleLayer(nnx.Module):
    """A layer whose attention reads a token and the hidden state before it, side by side."""

    def __init__(
        self,
        token_norm: RmsNorm,
        hidden_norm: RmsNorm,
        attention: nnx.Module,  # takes f32[T, 2 * D]
        before_ffw: RmsNorm,
        ffw: nnx.Module,
        *,
        adds_to_norm: bool = False,  # the layer adds to the normalised state
    ) -> None:
        self.token_norm = token_norm
        self.hidden_norm = hidden_norm
        self.attention = attention
        self.before_ffw = before_ffw
        self.ffw = ffw
        self.adds_to_norm = adds_to_norm

    def __call__(
        self,
        token: jax.Array,  # f32[T, D]
        x: jax.Array,  # f32[T, D]
        rotation: Rotary,
        pages: LayerPages,
        batch: PagedBatch,
    ) -> tuple[jax.Array, LayerPages]:
        normed = self.hidden_norm(x)
        seen = jnp.concatenate([self.token_norm(token), normed], axis=-1)
        mixed, pages = self.attention(seen, rotation, pages, batch)
        x = normed if self.adds_to_norm else x
        x, seen = sum_and_norm(self.before_ffw, x, mixed)
        return x + self.ffw(seen), pages


class EagleHead(nnx.Module):
    """An EAGLE-3 head (Li et al. 2025, arXiv:2503.01840): it reads three layers of the model.

    Its first layer reads the token, those behind it are usual ones. Its own output layer may know
    fewer tokens than the model; it has the number of each.
    """

    def __init__(
        self,
        *,
        embedding: Embedding,
        fusion_norm: RmsNorm | None = None,  # of what a step shows, f32[W]
        fusion: Linear,  # [D, W], of the layers that a step shows
        layer: EagleLayer,
        further: Sequence[nnx.Module] = (),
        rope: Rope,
        final_norm: nnx.Module,
        head: Linear,  # [V', D]
        outputs: int,  # V'
        offsets: bool,  # whether tokens of the head have other numbers than the model's
    ) -> None:
        self.embedding = embedding
        self.fusion_norm = fusion_norm
        self.fusion = fusion
        self.layers = nnx.List([layer, *further])
        self.rope = rope
        self.final_norm = final_norm
        self.head = head
        self.renumbered = offsets
        if offsets:
            # Whole numbers below 2**24, which f32 holds as they are.
            self.offset = weight((outputs,), (None,), Tensor("d2t"), dtype=jnp.float32, spread=0.0)

    def kept(self, hidden: jax.Array) -> jax.Array:
        """Map the three layers f32[T, 3 * D] to what is kept of each token, f32[T, D]."""
        return self.fusion(hidden if self.fusion_norm is None else self.fusion_norm(hidden))

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        before: jax.Array,  # f32[T, D]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
    ) -> tuple[jax.Array, Written]:
        """As `PredictionHead`; the hidden states are not normalised."""
        token = _embedded(self.embedding, tokens, positions)
        rotation, (first, *further) = self.rope.at(positions), self.layers
        x, held = run_layer(first, token, before, rotation, pages[0], batch)
        written = [held]
        for layer, held in zip(further, pages[1:], strict=True):
            x, held = run_layer(layer, x, rotation, held, batch)
            written.append(held)
        return x, tuple(written)

    def tokens(self, hidden: jax.Array) -> jax.Array:
        """Map f32[R, D] to the likeliest token of each row, i32[R]."""
        found = jnp.argmax(self.head(self.final_norm(hidden)), axis=-1).astype(jnp.int32)
        if not self.renumbered:
            return found
        return found + self.offset[...].at[found].get(mode="clip").astype(jnp.int32)
