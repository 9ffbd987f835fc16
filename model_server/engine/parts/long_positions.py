"""LongRoPE: a sequence is rotated by the factors for its length at the time. Pure.

One that outgrows the short factors starts again, as if preempted, with the long ones; this happens
once. Its pages are of no use to others from then on: the factors of all its positions change.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_server.engine.limits import EngineLimits
from model_server.engine.part import EnginePart
from model_server.engine.sequence import Sequence


@dataclass
class _Factors:
    long: bool = False
    outgrown_at: int | None = None  # position from which on it needs the long ones; None: it has


class LongPositions(EnginePart[_Factors]):
    """Chooses the factors at every start, as the reference does."""

    @classmethod
    def is_wanted(cls, limits: EngineLimits) -> bool:
        return limits.short_context is not None

    def begin(self, sequence: Sequence) -> _Factors:
        return _Factors()

    def prepare(self, sequence: Sequence) -> None:
        assert self.limits.short_context is not None
        positions = len(sequence.tokens) - sequence.paging.computed
        long = positions > self.limits.short_context
        if long != self.of[sequence.id].long:
            sequence.paging.chain.clear()
        self._set(sequence, _Factors(long, None if long else self.limits.short_context))

    def salt(self, sequence: Sequence) -> str:
        return str(int(self.of[sequence.id].long))

    def follow(self, sequence: Sequence, parent: Sequence) -> None:
        factors = self.of[parent.id]
        self._set(sequence, _Factors(factors.long, factors.outgrown_at))

    def limit(self, sequence: Sequence, end: int) -> int:
        outgrown_at = self.of[sequence.id].outgrown_at
        return end if outgrown_at is None else min(end, outgrown_at)

    def holds(self, sequence: Sequence) -> bool:
        return sequence.launched == self.of[sequence.id].outgrown_at

    def before_room(self) -> None:
        """Queue again what outgrew the short factors, once its last token is known."""
        outgrown = [
            each
            for each in self.live.running
            if self.holds(each) and len(each.tokens) > each.launched >= each.goal
        ]
        for sequence in outgrown:
            if sequence.slot >= 0:
                self.live.restart(sequence)

    def _set(self, sequence: Sequence, factors: _Factors) -> None:
        self.of[sequence.id] = factors
        sequence.columns = sequence.columns._replace(long=factors.long)
