"""Images and sounds of prompts: sizes of encoders, the spans that stand for media, and batches.

No jax: limits are known where jobs are planned, and batches are sent to every host.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import shake_128
from typing import NamedTuple

import msgspec
import numpy as np

from sax.errors import InvalidRequest

_MOST_IMAGES = 8  # of one batch


class BatchShape(NamedTuple):
    """A batch that is compiled."""

    encoder: int  # among those of the model
    images: int  # S: images or sounds
    size: int  # P: pieces of each


class EncoderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one encoder: what it takes, and the vectors that become of it."""

    kind: str  # what it encodes: image, audio
    pieces: tuple[int, ...]  # P, ascending: sizes that are compiled; the last is the most of one
    piece: int  # C: numbers of a piece
    columns: int  # K: numbers of its place
    per_row: int  # pieces that become one vector
    bidirectional: bool = False  # tokens of an image also see those after them: one chunk holds all
    least: int = 1  # rows of the smallest image, where tokens see each other: kernels count on it
    together: int = 0  # inputs of a batch; 0: as many as take no longer than the largest one alone
    adapter: int = 0  # place of the checkpoint's own, for prompts with such media; 0: it has none

    @property
    def largest(self) -> int:
        """Rows of the largest image."""
        return self.pieces[-1] // self.per_row

    def images(self, size: int) -> int:
        """Return how many images of so many pieces one batch takes."""
        return self.together or max(1, min(_MOST_IMAGES, self.pieces[-1] // size))

    def size(self, pieces: int) -> int:
        """Return the smallest compiled size that holds so many pieces."""
        return next(size for size in self.pieces if size >= pieces)


class MediaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one engine's media; the same on every host."""

    rows: int  # M: of the buffer, which all encoders share
    width: int  # W: the model's embed, times 1 + `levels`
    encoders: tuple[EncoderLimits, ...]  # at least one
    levels: int = 0  # first layers that add vectors of their own
    triples: bool = False  # positions are three numbers: frame, row, column

    @property
    def largest(self) -> int:
        """Rows of the largest image or sound."""
        return max(each.largest for each in self.encoders)

    @property
    def joined(self) -> int:
        """Rows of the largest image whose tokens see each other; 0: there are none such."""
        return max((each.largest for each in self.encoders if each.bidirectional), default=0)

    @property
    def bidirectional(self) -> bool:
        """True if tokens of some medium see each other."""
        return self.joined > 0

    @property
    def least(self) -> int:
        """Rows of the smallest image whose tokens see each other; 1: any number."""
        return min((each.least for each in self.encoders if each.bidirectional), default=1)

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        """Every batch that is compiled: one image, or many that are small together.

        None takes longer than the largest image alone: decodes wait for it.
        """
        return tuple(
            BatchShape(number, images, size)
            for number, encoder in enumerate(self.encoders)
            for size in encoder.pieces
            for images in dict.fromkeys((1, encoder.images(size)))
        )


_BITS = 2**62 - 1


class MediaSpan(msgspec.Struct, frozen=True):
    """One image or sound, as its encoder takes it, and the places of its vectors in the prompt."""

    digest: bytes  # cryptographic, of all that its vectors follow from: kind, pieces and places
    runs: tuple[tuple[int, int], ...]  # first position and end of each run of its tokens, in order
    count: int  # p: its pieces
    pieces: bytes  # f32[p, C], little-endian
    places: bytes  # i32[p, K], little-endian
    encoder: int = 0  # among those of the model

    @property
    def rows(self) -> int:
        return sum(end - first for first, end in self.runs)

    @property
    def start(self) -> int:
        return self.runs[0][0]

    @property
    def end(self) -> int:
        return self.runs[-1][1]


class RowMedia(msgspec.Struct, frozen=True, array_like=True):
    """Further columns of a step's row, of a model with an encoder."""

    shift: int = 0  # added to positions behind those in `positions`
    positions: bytes = b""  # i32[count, 3]; empty: all three are the token's own, and the shift
    # Runs of tokens, from the row's first token on, that see each other: (first, end).
    together: tuple[tuple[int, int], ...] = ()


def numbers_of(span: MediaSpan) -> list[int]:
    """Return a number below 0 for each token of a span.

    Spans of one digest have the same; those of others differ, so that prompts are told apart by
    their tokens alone, for shared pages, too.
    """
    each = array("q", shake_128(span.digest).digest(8 * span.rows))
    return [-1 - (number & _BITS) for number in each]


def with_numbers(prompt: Sequence[int], spans: Sequence[MediaSpan]) -> list[int]:
    """Return the prompt's tokens with those of media replaced by their numbers."""
    tokens = list(prompt)
    for span in spans:
        numbers, taken = numbers_of(span), 0
        for first, end in span.runs:
            tokens[first:end] = numbers[taken : taken + end - first]
            taken += end - first
    return tokens


def check_spans(spans: Sequence[MediaSpan], prompt: int, limits: MediaLimits | None) -> None:
    """Raise InvalidRequest for media that this model cannot take."""
    if not spans:
        return
    if limits is None:
        raise InvalidRequest(
            "this model takes text alone: leave images and sounds out, or ask a model with an "
            "encoder",
            param="messages",
        )
    before = 0
    for first, end in sorted(run for span in spans for run in span.runs):
        assert before <= first < end <= prompt, "runs share no token and end within the prompt"
        before = end
    starts = [span.start for span in spans]
    assert starts == sorted(starts), "spans begin one after the other; runs of others lie between"
    for span in spans:
        _check_size(span, limits.encoders[span.encoder])


def _check_size(span: MediaSpan, encoder: EncoderLimits) -> None:
    assert len(span.pieces) == 4 * span.count * encoder.piece, "pieces are f32[p, C]"
    assert len(span.places) == 4 * span.count * encoder.columns, "places are i32[p, K]"
    one = "a sound" if encoder.kind == "audio" else "an image"
    if span.rows < encoder.least:
        raise InvalidRequest(
            f"{one} of {span.rows} tokens is smaller than this model's, which have {encoder.least}",
            param="messages",
        )
    if span.count > encoder.pieces[-1] or span.rows > encoder.largest:
        raise InvalidRequest(
            f"{one} of {span.count} pieces and {span.rows} tokens is larger than this model "
            f"takes, {encoder.pieces[-1]} pieces and {encoder.largest} tokens: send it smaller",
            param="messages",
        )


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
