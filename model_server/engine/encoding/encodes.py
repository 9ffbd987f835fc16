"""Decides which images are encoded next, and how far prompts may be computed. Pure.

A sequence pins the images that it needs next and that have rows; it lets go of one when the step
that reads its last row has been launched, also if it comes again behind others without rows. Steps
and batches of the encoder run in the order of their launches, so that whatever overwrites the rows
comes later. Images are encoded in the order in which sequences took their slots: one that lacks
room keeps all behind it waiting, so that rows come free for it. A pinned image needs no other's
rows to be used, so rows always come free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from model_server.engine.media.encode_batch import EncodeBatch, EncodedPart
from model_server.engine.media.media_limits import MediaLimits
from model_server.engine.media.media_span import MediaSpan
from model_server.engine.media.row_pool import RowPool
from model_server.engine.sequence import Sequence


class Encodes:
    """The media buffer of one engine."""

    def __init__(self, limits: MediaLimits) -> None:
        self.limits = limits
        self.pool = RowPool(limits.rows)
        self.encoded = 0  # images, repeated ones once more

    def next_batch(self, running: Iterable[Sequence]) -> EncodeBatch | None:
        """Give rows to the images that are needed next; return those to encode now, if any.

        running: in order of admission.
        """
        size, parts = 0, list[EncodedPart]()
        for sequence in running:
            for span in self._needed(sequence):
                if self._pinned(sequence, span):
                    continue
                pieces = self.limits.size(span.count)
                if size not in (0, pieces) or len(parts) == self.limits.images(pieces):
                    return EncodeBatch(size, tuple(parts))
                rows = self.pool.take(span.digest, span.rows)
                if rows is None:
                    return EncodeBatch(size, tuple(parts)) if parts else None
                size = pieces
                parts.append(EncodedPart(rows, span.count, span.pieces, span.places))
                self.encoded += 1
                self._pin(sequence, span)
        return EncodeBatch(size, tuple(parts)) if parts else None

    def reach(self, sequence: Sequence) -> int:
        """Return the first position that may not be computed yet: its image is not encoded."""
        for span in self._needed(sequence):
            if not self._pinned(sequence, span):
                return max(span.start, sequence.launched)
        return len(sequence.tokens)

    def tokens(self, sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
        """Return tokens for a step: -1 - m for row m of the buffer."""
        tokens = sequence.tokens[start:end]
        for span in sequence.media:
            if span.end <= start or span.start >= end:
                continue
            rows, taken = self.pool.find(span.digest), 0
            assert rows is not None, "it is pinned"
            for first, last in span.runs:
                for position in range(max(first, start), min(last, end)):
                    tokens[position - start] = -1 - rows[taken + position - first]
                taken += last - first
        return tuple(tokens)

    def launched(self, sequence: Sequence) -> None:
        """Let go of the images that no later step of a sequence reads before it needs others.

        One that comes again in the prompt, behind others without rows, would keep these waiting.
        """
        if sequence.pinned:
            pinned = sequence.pinned
            next_ones = takewhile(lambda digest: digest in pinned, self._digests(sequence))
            self._unpin(sequence, pinned.difference(next_ones))

    def release(self, sequence: Sequence) -> None:
        """Let go of all images of a sequence that loses its slot."""
        self._unpin(sequence, sequence.pinned)

    def _needed(self, sequence: Sequence) -> list[MediaSpan]:
        """Return the spans that are still to be computed, at least in part."""
        if sequence.launched >= sequence.goal or sequence.is_seat:
            return []  # seats begin behind the prompt, with the pages of the first one
        return [span for span in sequence.media if span.end > sequence.launched]

    def _digests(self, sequence: Sequence) -> Iterator[bytes]:
        return (span.digest for span in self._needed(sequence))

    def _pinned(self, sequence: Sequence, span: MediaSpan) -> bool:
        """Return False if the image has no rows; pins it for the sequence else."""
        if span.digest in sequence.pinned:
            return True
        if self.pool.find(span.digest) is None:
            return False
        self._pin(sequence, span)
        return True

    def _pin(self, sequence: Sequence, span: MediaSpan) -> None:
        self.pool.pin(span.digest)
        sequence.pinned = sequence.pinned | {span.digest}

    def _unpin(self, sequence: Sequence, digests: frozenset[bytes]) -> None:
        for digest in digests:
            self.pool.unpin(digest)
        sequence.pinned = sequence.pinned - digests
