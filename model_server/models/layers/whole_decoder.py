"""A decoder read over whole inputs at once: hidden states without a cache or a next token."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from model_server.checkpoints.huggingface.sentence_transformers import TokenScore
from model_server.kernels.media_vectors import MediaVectors, vectors_of
from model_server.kernels.whole import no_pages, whole_batch
from model_server.models.layers.decoder import Decoder, live_rows_of
from model_server.models.layers.layers import Linear
from model_server.models.long_positions import LONG


class MixedTokens(NamedTuple):
    """Tokens of inputs with images among them, in place of i32[B, T]."""

    ids: jax.Array  # i32[B, T]; below 0: row -1 - id of the buffer
    at: jax.Array | None  # i32[3, B, T]: frames, rows and columns; None: as of a text
    buffer: jax.Array  # f32[M, D * (1 + levels)]
    levels: int  # first layers that add vectors of their own


Tokens = jax.Array | MixedTokens


class WholeDecoder(nnx.Module):
    """Maps tokens i32[B, T] and lengths i32[B] to hidden states f32[B, T, D] of a decoder."""

    def __init__(self, decoder: Decoder, *, causal: bool = True) -> None:
        if decoder.head is not None:
            decoder.head = None  # its weights are not read
        self.decoder = decoder
        self.causal = causal

    def __call__(
        self, tokens: Tokens, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps to f32[B, T, D], garbage past each length; a decoder has no `segments`."""
        return _read(self.decoder, tokens, lengths, causal=self.causal)


class LastTokenHead(nnx.Module):
    """A decoder with a linear head over the last token of each input."""

    over_inputs = ("head",)

    def __init__(self, encoder: WholeDecoder, head: Linear) -> None:
        self.encoder = encoder
        self.head = head

    def __call__(
        self, tokens: Tokens, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to logits f32[B, labels]."""
        return self.head(_last(self.encoder(tokens, lengths), lengths))


class NextTokenScore(nnx.Module):
    """A decoder that scores each input by the token that would come next."""

    over_inputs = ("decoder.head", "decoder.embedding")

    def __init__(self, decoder: Decoder, score: TokenScore) -> None:
        self.decoder = decoder
        self.score = score

    def __call__(
        self, tokens: Tokens, lengths: jax.Array, segments: jax.Array | None = None
    ) -> jax.Array:
        """Maps i32[B, T] and lengths i32[B] to f32[B, 1], the logarithm of the odds."""
        hidden = _read(self.decoder, tokens, lengths)
        logits = self.decoder.logits(_last(hidden, lengths))
        scores = logits[:, self.score.true_id]
        if self.score.false_id is not None:
            scores = scores - logits[:, self.score.false_id]
        return scores[:, None]


def _last(hidden: jax.Array, lengths: jax.Array) -> jax.Array:
    """f32[B, D]: the hidden states f32[B, T, D] of each input's last token."""
    return jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]


def _read(
    decoder: Decoder, tokens: Tokens, lengths: jax.Array, *, causal: bool = True
) -> jax.Array:
    """Return normalised hidden states f32[B, T, D]."""
    if not isinstance(tokens, MixedTokens):
        return hidden_of(decoder, embedded(decoder, tokens), lengths, causal=causal)
    (rows, columns), ids = tokens.ids.shape, tokens.ids.reshape(-1)
    media = vectors_of(ids, tokens.buffer, tokens.levels)
    at = jnp.tile(jnp.arange(columns, dtype=jnp.int32), rows)
    vectors = decoder.embed(ids, at, media).reshape(rows, columns, -1)
    return hidden_of(decoder, vectors, lengths, causal=causal, at=tokens.at, media=media)


def embedded(decoder: Decoder, tokens: jax.Array) -> jax.Array:
    """Return the vectors f32[B, T, D] of tokens i32[B, T], the input of the first layer."""
    rows, columns = tokens.shape
    at = jnp.tile(jnp.arange(columns, dtype=jnp.int32), rows)
    return decoder.embed(tokens.reshape(-1), at).reshape(rows, columns, -1)


def hidden_of(
    decoder: Decoder,
    vectors: jax.Array,
    lengths: jax.Array,
    *,
    causal: bool = True,
    at: jax.Array | None = None,
    media: MediaVectors | None = None,
) -> jax.Array:
    """Return normalised hidden states f32[B, T, D] of vectors f32[B, T, D], lengths i32[B].

    at: i32[3, B, T], positions of three numbers; None: as of a text. media: what images add in the
    first layers.
    """
    rows, columns, size = vectors.shape
    live = live_rows_of(decoder)
    batch = whole_batch(lengths, columns, causal=causal, live=live)
    pages = [no_pages()] * len(decoder.layers)
    own = rotated_positions(decoder, lengths, columns) if at is None else at
    flat = own.reshape(*own.shape[:-2], -1)
    made, _ = decoder.run(vectors.reshape(-1, size), flat, pages, batch, media)
    return decoder.final_norm(made).reshape(rows, columns, -1)


def rotated_positions(decoder: Decoder, lengths: jax.Array, columns: int) -> jax.Array:
    """Return the positions i32[B, T] that tokens are rotated by, marked in long inputs."""
    at = jnp.broadcast_to(jnp.arange(columns, dtype=jnp.int32), (lengths.shape[0], columns))
    short = next((rope.short_context for rope in decoder.ropes if rope), None)
    return at if short is None else at + jnp.where(lengths > short, LONG, 0)[:, None]
