"""An image or a sound in a prompt, and the numbers that stand for its tokens. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import shake_128

import msgspec

from model_server.engine.media.media_limits import EncoderLimits, MediaLimits
from sax.errors import InvalidRequest

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
