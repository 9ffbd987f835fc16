"""Sizes of the encoder beside a model and of the buffer that holds its vectors. No jax."""

from __future__ import annotations

import msgspec

_MOST_IMAGES = 8  # of one batch


class MediaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one engine's media; the same on every host."""

    rows: int  # M: of the buffer
    pieces: tuple[int, ...]  # P, ascending: sizes that are compiled; the last is the most of one
    piece: int  # C: numbers of a piece
    columns: int  # K: numbers of its place
    per_row: int  # pieces that become one vector
    width: int  # W: the model's embed, times 1 + `levels`
    levels: int = 0  # first layers that add vectors of their own
    bidirectional: bool = False  # tokens of an image also see those after them: one chunk holds all
    triples: bool = False  # positions are three numbers: frame, row, column

    @property
    def largest(self) -> int:
        """Rows of the largest image."""
        return self.pieces[-1] // self.per_row

    @property
    def least(self) -> int:
        """Rows of the smallest image, where the kernels depend on it: all are of one size then."""
        return self.largest if self.bidirectional and len(self.pieces) == 1 else 1

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """(S, P) of every batch that is compiled: one image, or many that are small together.

        None takes longer than the largest image alone: decodes wait for it.
        """
        return tuple(
            (images, size)
            for size in self.pieces
            for images in dict.fromkeys((1, self.images(size)))
        )

    def images(self, size: int) -> int:
        """Return how many images of so many pieces one batch takes."""
        return max(1, min(_MOST_IMAGES, self.pieces[-1] // size))

    def size(self, pieces: int) -> int:
        """Return the smallest compiled size that holds so many pieces."""
        return next(size for size in self.pieces if size >= pieces)
