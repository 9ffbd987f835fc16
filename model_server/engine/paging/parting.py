"""Where the sequences of one beam search part. Pure."""

from __future__ import annotations

from model_server.engine.sequence import Sequence


def parting(one: Sequence, other: Sequence) -> int:
    """Return the first position with different tokens in two equally long sequences."""
    pairs = zip(one.tokens, other.tokens, strict=True)
    return next(place for place, (left, right) in enumerate(pairs) if left != right)


def partings(seats: list[Sequence]) -> list[int]:
    """Return where those with a hypothesis part from the first."""
    return [parting(seat, seats[0]) for seat in seats[1:] if seat.tokens]
