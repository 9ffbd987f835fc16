"""A decoder read over whole inputs with images or sounds in them, for comparison."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from model_server.kernels.media_vectors import vectors_of
from model_server.kernels.whole import no_pages, whole_batch
from model_server.models.layers.decoder import Decoder
from model_server.models.layers.whole_decoder import rotated_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeMedia:
    """Images or sounds in whole inputs, for `hidden_with_media`."""

    buffer: jax.Array  # f32[M, D * (1 + levels)]: tokens below 0 stand for row -1 - token
    levels: int = 0  # first layers that add vectors of their own
    positions: jax.Array | None = None  # i32[3, B, T]; None: tokens are counted
    ahead: jax.Array | None = None  # i32[B, T], as `PagedBatch.block_ahead`


def hidden_with_media(
    decoder: Decoder, tokens: jax.Array, lengths: jax.Array, media: WholeMedia
) -> jax.Array:
    """Return normalised hidden states f32[B, T, D] of tokens i32[B, T], some below 0."""
    rows, columns = tokens.shape
    batch = whole_batch(lengths, columns, ahead=media.ahead)
    pages = [no_pages()] * len(decoder.layers)
    at = rotated_positions(decoder, lengths, columns).reshape(-1)
    if media.positions is not None:
        at = media.positions.reshape(3, -1)
    flat = tokens.reshape(-1)
    vectors = vectors_of(flat, media.buffer, media.levels)
    made, _ = decoder(flat, at, pages, batch, vectors)
    return made.reshape(rows, columns, -1)
