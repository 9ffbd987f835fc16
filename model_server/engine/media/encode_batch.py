"""Images or sounds that are encoded together. No jax: it is sent to every host."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from model_server.engine.media.media_limits import BatchShape, MediaLimits


class EncodedPart(msgspec.Struct, frozen=True, array_like=True):
    """One image or sound of a batch."""

    rows: tuple[int, ...]  # of the buffer, that its vectors go to
    count: int  # p: its pieces
    pieces: bytes  # f32[p, C], little-endian
    places: bytes  # i32[p, K], little-endian


class EncodeBatch(msgspec.Struct, frozen=True, array_like=True):
    """One call of an encoder."""

    encoder: int  # among those of the model
    size: int  # P: pieces that each is padded to
    parts: tuple[EncodedPart, ...]

    def shape(self, limits: MediaLimits) -> BatchShape:
        """Return the compiled batch that takes it."""
        most = limits.encoders[self.encoder].images(self.size)
        return BatchShape(self.encoder, 1 if len(self.parts) == 1 else most, self.size)


class EncoderInput(NamedTuple):
    """A batch as the encoder takes it."""

    pieces: np.ndarray  # f32[S, P, C]
    places: np.ndarray  # i32[S, P, K]
    lengths: np.ndarray  # i32[S]: at least 1
    rows: np.ndarray  # i32[S, P // per_row]: of the buffer; M: none


def empty_input(limits: MediaLimits, shape: BatchShape) -> EncoderInput:
    """Return the input of a batch whose vectors are kept nowhere."""
    number, images, size = shape
    encoder = limits.encoders[number]
    return EncoderInput(
        np.zeros((images, size, encoder.piece), np.float32),
        np.zeros((images, size, encoder.columns), np.int32),
        np.ones(images, np.int32),
        np.full((images, size // encoder.per_row), limits.rows, np.int32),
    )


def pack_batch(batch: EncodeBatch, limits: MediaLimits) -> EncoderInput:
    """Pad a batch to its compiled shape."""
    made, encoder = empty_input(limits, batch.shape(limits)), limits.encoders[batch.encoder]
    for index, part in enumerate(batch.parts):
        pieces = np.frombuffer(part.pieces, "<f4").reshape(part.count, encoder.piece)
        places = np.frombuffer(part.places, "<i4").reshape(part.count, encoder.columns)
        made.pieces[index, : part.count] = pieces
        made.places[index, : part.count] = places
        made.lengths[index] = part.count
        made.rows[index, : len(part.rows)] = part.rows
    return made
