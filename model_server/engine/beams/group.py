"""The sequences of one beam search: which of them runs which hypothesis. Pure.

Every seat has a slot, and runs one hypothesis or none. A hypothesis stays in its seat with its
first continuation; further ones move to seats whose hypotheses were given up. All hypotheses have
equally many tokens, so once they decode they do so in the same steps.
"""

from __future__ import annotations

from typing import NamedTuple

from model_server.engine.beams.search import BeamSearch
from model_server.engine.sequence import Sequence
from model_server.engine.types import RowResult


class Moves(NamedTuple):
    """The seats after one more token."""

    tokens: list[int]  # of each hypothesis
    seats: list[Sequence]  # of each hypothesis
    forks: list[tuple[Sequence, Sequence]]  # a seat with another's hypothesis, and that other
    left: list[Sequence]  # seats without a hypothesis now


class BeamGroup:
    """A search and its seats."""

    def __init__(self, sequence: Sequence) -> None:
        request, first = sequence.request, sequence.id
        assert request.beams is not None
        most = sequence.finish_at - sequence.prompt
        self.search = BeamSearch(request.beams, request.stop_ids, most)
        ids = range(first + 1, first + request.beams.size)
        self.seats = [sequence, *map(sequence.empty_copy, ids)]
        for each in self.seats:
            each.group = self.seats
        self._runs = [sequence]  # seats by hypothesis
        self._outcomes: dict[int, RowResult] = {}  # by seat, of the next token

    def begin(self) -> list[Sequence]:
        """Begin with all seats empty; return those whose hypotheses follow the first seat's."""
        self._outcomes.clear()
        return [seat for seat in self._runs if seat is not self.seats[0]]

    def report(self, seat: Sequence, outcome: RowResult) -> bool:
        """Take in a seat's result; return True if it was the last one missing."""
        self._outcomes[seat.id] = outcome
        return len(self._outcomes) == len(self._runs)

    def advance(self) -> Moves:
        """Choose the next hypotheses and their seats, all of which have reported."""
        outcomes = [self._outcomes[seat.id] for seat in self._runs]
        self._outcomes.clear()
        choices = self.search.advance(outcomes)
        parents = [self._runs[choice.parent] for choice in choices]
        empty = [seat for seat in self.seats if seat not in parents]
        seats: list[Sequence] = []
        forks: list[tuple[Sequence, Sequence]] = []
        for parent in parents:
            seat = parent
            if parent in seats:
                forks.append(((seat := empty.pop()), parent))
            seats.append(seat)
        return Moves([choice.token for choice in choices], seats, forks, empty)

    def sit(self, moves: Moves) -> None:
        """Give each seat the tokens of its hypothesis."""
        for seat, parent in moves.forks:
            seat.tokens, seat.paging.chain = parent.tokens.copy(), parent.paging.chain.copy()
        for seat in moves.left:
            seat.tokens, seat.paging.chain = [], []
        for seat, token in zip(moves.seats, moves.tokens, strict=True):
            seat.tokens.append(token)
        self._runs = moves.seats

    def line_up(self) -> None:
        """Without slots: give the first seat, which waits for all, a hypothesis if it has none."""
        first = self.seats[0]
        if self._runs and first not in self._runs:
            other = self._runs[0]
            first.tokens, first.paging.chain = other.tokens, []
            other.tokens, other.paging.chain = [], []
            self._runs[0] = first
