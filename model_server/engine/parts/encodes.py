"""Decides which images are encoded next, and how far prompts may be computed. Pure.

A sequence pins the images that it needs next and that have rows; it lets go of one when the step
that reads its last row has been launched, also if it comes again behind others without rows. Steps
and batches of the encoder run in the order of their launches, so that whatever overwrites the rows
comes later. Images are encoded in the order in which sequences took their slots: one that lacks
room keeps all behind it waiting, so that rows come free for it. A pinned image needs no other's
rows to be used, so rows always come free; but for a sound whose tokens stand between those of
images. Sequences behind the one that lacks room let go of such, and it is encoded again.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import islice, takewhile

from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.live_sequences import LiveSequences
from model_server.engine.media import (
    EncodeBatch,
    EncodedPart,
    MediaLimits,
    MediaSpan,
    RowMedia,
    check_spans,
)
from model_server.engine.part import EnginePart
from model_server.engine.request import EngineRequest
from model_server.engine.running.ops import Encode
from model_server.engine.sequence import Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.step_times import StepTimes
from model_server.engine.types import Row
from sax.errors import InvalidRequest


class RowPool:
    """The rows 0 .. M - 1, by the digests of images."""

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows - 1, -1, -1))  # the last one is taken next
        self._held: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()  # used longest ago first
        self._pins: Counter[bytes] = Counter()
        self.evictions = 0  # images that gave up their rows

    @property
    def used(self) -> int:
        """Rows of images that would be found."""
        return sum(map(len, self._held.values()))

    def find(self, digest: bytes) -> tuple[int, ...] | None:
        """Return the rows of an image, in order; None: it has none."""
        rows = self._held.get(digest)
        if rows is not None:
            self._held.move_to_end(digest)
        return rows

    def take(self, digest: bytes, count: int) -> tuple[int, ...] | None:
        """Give rows to an image that has none; None: too many are pinned."""
        assert digest not in self._held, "an image has its rows once"
        unpinned = [each for each in self._held if not self._pins[each]]
        if len(self._free) + sum(len(self._held[each]) for each in unpinned) < count:
            return None
        for each in unpinned:
            if len(self._free) >= count:
                break
            self._free += reversed(self._held.pop(each))
            self.evictions += 1
        rows = tuple(self._free.pop() for _ in range(count))
        self._held[digest] = rows
        return rows

    def pin(self, digest: bytes) -> None:
        """Keep the rows of an image until as many calls of `unpin`."""
        assert digest in self._held, "only what has rows keeps them"
        self._pins[digest] += 1

    def unpin(self, digest: bytes) -> None:
        self._pins[digest] -= 1
        assert self._pins[digest] >= 0, "it was pinned less often"
        if not self._pins[digest]:
            del self._pins[digest]


_TRIPLE = 12  # bytes of three i32


def media_of(request: EngineRequest, start: int, end: int, limits: MediaLimits) -> RowMedia | None:
    """Return the further columns of a chunk of prompt and answer."""
    runs = joined_runs(request, limits)
    seen = tuple((max(first - start, 0), last - start) for first, last in runs if first < end)
    seen = tuple(run for run in seen if run[1] > 0)
    positions = request.positions[_TRIPLE * start : _TRIPLE * end]
    if seen or positions or request.shift:
        return RowMedia(request.shift, positions, seen)
    return None


def whole_length(request: EngineRequest, start: int, limits: MediaLimits) -> int:
    """Return the tokens up to the end of the run that a chunk begins in; 0: it begins outside."""
    runs = joined_runs(request, limits)
    return next((last - start for first, last in runs if first <= start < last), 0)


def uncut(request: EngineRequest, start: int, length: int, limits: MediaLimits) -> int:
    """Return the length of the longest chunk, up to this one, that ends within no run."""
    end, runs = start + length, joined_runs(request, limits)
    return next((max(0, first - start) for first, last in runs if first < end < last), length)


def joined_runs(request: EngineRequest, limits: MediaLimits) -> Iterator[tuple[int, int]]:
    """Yield the runs whose tokens see each other."""
    encoders = limits.encoders
    joined = (span for span in request.media if encoders[span.encoder].bidirectional)
    return (run for span in joined for run in span.runs)


_Pinned = frozenset[bytes]  # digests of images whose rows a sequence keeps


class Encodes(EnginePart[_Pinned]):
    """The images of prompts, and the buffer with their vectors."""

    def join(self, live: LiveSequences, times: StepTimes | None) -> None:
        super().join(live, times)
        assert live.limits.media is not None, "it takes text alone"
        self._media: MediaLimits = live.limits.media
        self.pool = RowPool(self._media.rows)
        self.encoded = 0  # images, repeated ones once more

    @classmethod
    def is_wanted(cls, limits: EngineLimits) -> bool:
        return limits.media is not None

    @classmethod
    def check(cls, request: EngineRequest, limits: EngineLimits, context: int) -> None:
        """Reject media that the model cannot take, and scores of their tokens: these mean nothing.

        Called whatever the limits are.
        """
        prompt, media = len(request.prompt), request.media
        check_spans(media, prompt, limits.media)
        if media and limits.media is not None and limits.media.triples:
            assert request.positions, "the places of its images come with the request"
        if request.positions:
            assert limits.media is not None, "its positions are not triples"
            assert limits.media.triples, "its positions are not triples"
            assert len(request.positions) == 12 * prompt, "positions are i32[T, 3]"
        first = request.score_from
        last = max((span.end for span in media), default=0)
        if first is not None and first < last:
            raise InvalidRequest(
                f"cannot score from token {first}: tokens of an image have no scores, and the last "
                f"one ends at token {last}: score what follows it",
                param="score_from",
            )

    def begin(self, sequence: Sequence) -> _Pinned | None:
        request = sequence.request
        if request.shift:
            sequence.columns = sequence.columns._replace(media=RowMedia(request.shift))
        return frozenset() if request.media else None

    def released(self, sequence: Sequence) -> None:
        """Let go of all images of a sequence that loses its slot."""
        self._unpin(sequence, self.of[sequence.id])

    # What the encoder does

    def op(self) -> Encode | None:
        batch = self._next_batch()
        return None if batch is None else Encode(batch)

    def _next_batch(self) -> EncodeBatch | None:
        """Give rows to the images that are needed next; return those to encode now, if any."""
        encoder, size, parts = 0, 0, list[EncodedPart]()
        for place, sequence in enumerate(self.live.running):  # in order of admission
            for span in self._needed(sequence):
                if self._is_pinned(sequence, span):
                    continue
                limits = self._media.encoders[span.encoder]
                wanted = span.encoder, limits.size(span.count)
                others = parts and wanted != (encoder, size)
                if others or len(parts) == limits.images(wanted[1]):
                    return EncodeBatch(encoder, size, tuple(parts))
                rows = self._rows(span, place)
                if rows is None:
                    return EncodeBatch(encoder, size, tuple(parts)) if parts else None
                encoder, size = wanted
                parts.append(EncodedPart(rows, span.count, span.pieces, span.places))
                self.encoded += 1
                self._pin(sequence, span)
        return EncodeBatch(encoder, size, tuple(parts)) if parts else None

    def _rows(self, span: MediaSpan, place: int) -> tuple[int, ...] | None:
        """Take rows for an image; None: too many are in use. place: of its sequence."""
        if (rows := self.pool.take(span.digest, span.rows)) is not None:
            return rows
        for other in islice(self.live.running, place + 1, None):
            if self.of.get(other.id):
                reach = self._reach(other)
                late = (each.digest for each in self._needed(other) if each.end > reach)
                self._unpin(other, self.of[other.id].intersection(late))
        return self.pool.take(span.digest, span.rows)

    # What steps compute

    def before_rows(self, step: StepBuilder, *, late: bool) -> None:
        """Reserve the blocks of an image next in a prompt that one chunk must hold.

        Streams of forced tokens, which take blocks, could keep it waiting for ever.
        """
        if self._media.bidirectional:
            waiting = [each for each in self.live.running if each.launched < each.goal]
            lengths = map(self._whole, waiting)
            step.reserved = -(-max(lengths, default=0) // self.limits.prefill_block)

    def is_urgent(self, sequence: Sequence) -> bool:
        """Those that are in front of an image which one chunk must hold come first."""
        return self._whole(sequence) > 0

    def chunk_blocks(self, sequence: Sequence, blocks: int, most: int) -> int:
        whole = -(-self._whole(sequence) // self.limits.prefill_block)
        return max(blocks, whole) if whole <= most else blocks

    def chunk_length(self, sequence: Sequence, length: int, logit_rows: int) -> int:
        start = sequence.launched
        length = min(self._reach(sequence) - start, length)
        return uncut(sequence.request, start, length, self._media)

    def fill(self, sequence: Sequence, row: Row) -> Row:
        start, end = row.start, row.start + row.count
        media = media_of(sequence.request, start, end, self._media)
        return replace(row, tokens=self._tokens(sequence, start, end), media=media)

    def scheduled(self, step: StepBuilder) -> None:
        """Let go of the images that no later step of a sequence reads before it needs others.

        One that comes again in the prompt, behind others without rows, would keep these waiting.
        """
        for sequence in step.chunks:
            if pinned := self.of.get(sequence.id):
                digests = (span.digest for span in self._needed(sequence))
                self._unpin(sequence, pinned.difference(takewhile(pinned.__contains__, digests)))

    def _whole(self, sequence: Sequence) -> int:
        return whole_length(sequence.request, sequence.launched, self._media)

    def _reach(self, sequence: Sequence) -> int:
        """Return the first position that may not be computed yet: its image is not encoded.

        Of a prompt whose tokens all see each other none may.
        """
        whole = self.limits.bidirectional_prompt > 0
        for span in self._needed(sequence):
            if not self._is_pinned(sequence, span):
                return max(0 if whole else span.start, sequence.launched)
        return len(sequence.tokens)

    def _tokens(self, sequence: Sequence, start: int, end: int) -> tuple[int, ...]:
        """Return tokens for a step: -1 - m for row m of the buffer."""
        tokens = sequence.tokens[start:end]
        for span in sequence.request.media:
            if span.end <= start or span.start >= end:
                continue
            rows, taken = self.pool.find(span.digest), 0
            assert rows is not None, "it is pinned"
            for first, last in span.runs:
                for position in range(max(first, start), min(last, end)):
                    tokens[position - start] = -1 - rows[taken + position - first]
                taken += last - first
        return tuple(tokens)

    # Which images have rows

    def _needed(self, sequence: Sequence) -> Iterator[MediaSpan]:
        """Yield the spans that are still to be computed, at least in part.

        Followers of a group begin behind the prompt, with the pages of the first one.
        """
        launched = sequence.launched
        if launched < sequence.goal and not sequence.is_follower:
            yield from (span for span in sequence.request.media if span.end > launched)

    def _is_pinned(self, sequence: Sequence, span: MediaSpan) -> bool:
        """Return False if the image has no rows; pins it for the sequence else."""
        if span.digest in self.of[sequence.id]:
            return True
        if self.pool.find(span.digest) is None:
            return False
        self._pin(sequence, span)
        return True

    def _pin(self, sequence: Sequence, span: MediaSpan) -> None:
        self.pool.pin(span.digest)
        self.of[sequence.id] |= {span.digest}

    def _unpin(self, sequence: Sequence, digests: frozenset[bytes]) -> None:
        for digest in digests:
            self.pool.unpin(digest)
        self.of[sequence.id] -= digests
