"""Sizes of the encoders beside a model and of the buffer that holds their vectors. No jax."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

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
