"""The sequences of one beam search: which of them runs which hypothesis. Pure.

A beam slot is a sequence with a slot, and runs one hypothesis or none. A hypothesis stays in its
beam slot with its first continuation; further ones move to beam slots whose hypotheses were given
up. All hypotheses have equally many tokens, so once they decode they do so in the same steps.
"""

from __future__ import annotations

from typing import NamedTuple

from model_server.engine.beams.search import BeamSearch
from model_server.engine.sequence import Sequence
from model_server.engine.types import RowResult


class Moves(NamedTuple):
    """The beam slots after one more token."""

    tokens: list[int]  # of each hypothesis
    beams: list[Sequence]  # of each hypothesis
    forks: list[tuple[Sequence, Sequence]]  # a beam slot with another's hypothesis, and that other
    left: list[Sequence]  # beam slots without a hypothesis now


class BeamGroup:
    """A search and its beam slots."""

    def __init__(self, sequence: Sequence) -> None:
        request, first = sequence.request, sequence.id
        assert request.beams is not None
        most = sequence.finish_at - sequence.prompt
        self.search = BeamSearch(request.beams, request.stop_ids, most)
        ids = range(first + 1, first + request.beams.size)
        self.beams = [sequence, *map(sequence.empty_copy, ids)]
        for each in self.beams:
            each.group = self.beams
        self._runs = [sequence]  # beam slots by hypothesis
        self._outcomes: dict[int, RowResult] = {}  # by beam slot, of the next token

    def begin(self) -> list[Sequence]:
        """Begin with all beam slots empty; return those whose hypotheses follow the first one's."""
        self._outcomes.clear()
        return [beam for beam in self._runs if beam is not self.beams[0]]

    def report(self, beam: Sequence, outcome: RowResult) -> bool:
        """Take in a beam slot's result; return True if it was the last one missing."""
        self._outcomes[beam.id] = outcome
        return len(self._outcomes) == len(self._runs)

    def advance(self) -> Moves:
        """Choose the next hypotheses and their beam slots, all of which have reported."""
        outcomes = [self._outcomes[beam.id] for beam in self._runs]
        self._outcomes.clear()
        choices = self.search.advance(outcomes)
        parents = [self._runs[choice.parent] for choice in choices]
        empty = [beam for beam in self.beams if beam not in parents]
        beams: list[Sequence] = []
        forks: list[tuple[Sequence, Sequence]] = []
        for parent in parents:
            beam = parent
            if parent in beams:
                forks.append(((beam := empty.pop()), parent))
            beams.append(beam)
        return Moves([choice.token for choice in choices], beams, forks, empty)

    def settle(self, moves: Moves) -> None:
        """Give each beam slot the tokens of its hypothesis."""
        for beam, parent in moves.forks:
            beam.tokens, beam.paging.chain = parent.tokens.copy(), parent.paging.chain.copy()
        for beam in moves.left:
            beam.tokens, beam.paging.chain = [], []
        for beam, token in zip(moves.beams, moves.tokens, strict=True):
            beam.tokens.append(token)
        self._runs = moves.beams

    def line_up(self) -> None:
        """Without slots: give the first one, which waits for all, a hypothesis if it has none."""
        first = self.beams[0]
        if self._runs and first not in self._runs:
            other = self._runs[0]
            first.tokens, first.paging.chain = other.tokens, []
            other.tokens, other.paging.chain = [], []
            self._runs[0] = first
