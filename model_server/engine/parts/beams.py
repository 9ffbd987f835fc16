"""Beam searches in the scheduler: their hypotheses on the pages of one pool. Pure.

A search takes a slot for each of its hypotheses, all at once. A hypothesis that moves to another
slot takes its parent's full pages with it, which nobody writes to again, and begins a page of its
own with a copy of the one that is filled in part. This needs no prefix cache.

A search that was preempted computes its first hypothesis again, like any sequence. The others then
begin behind the tokens that they have in common with it, the prompt at least, and when all have
caught up the search goes on.

A beam slot is a sequence with a slot, and runs one hypothesis or none. A hypothesis stays in its
beam slot with its first continuation; further ones move to beam slots whose hypotheses were given
up. All hypotheses have equally many tokens, so once they decode they do so in the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import NamedTuple

from model_server.engine.limits import EngineLimits
from model_server.engine.part import EnginePart
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.types import BeamSettings, Hypothesis, Row, RowResult, Sampling
from sax.errors import InvalidRequest


class Continuation(NamedTuple):
    """A new hypothesis: one of those before it, and a token."""

    parent: int
    token: int
    logprob: float  # of all its tokens


class _Partial(NamedTuple):
    tokens: tuple[int, ...]
    logprob: float
    over: bool = False  # it holds an end token, which only early stopping allows


def length_norm(tokens: int, alpha: float) -> float:
    """Return what divides the log-probability of an answer of so many tokens."""
    return ((tokens + 5) / 5) ** alpha


def sampling_of(beams: BeamSettings, ends: frozenset[int]) -> Sampling:
    """Return the sampling of every hypothesis' slot: it chooses the likeliest end token, whose
    log-probability is that of the unmodified logits, and reports the likeliest tokens beside it."""
    return Sampling(0.0, 0, 1.0, 0, logprobs=_reported(beams, ends), allowed=tuple(sorted(ends)))


def _reported(beams: BeamSettings, ends: frozenset[int]) -> int:
    """Return how many likeliest tokens are enough: before `min_tokens`, end tokens do not count."""
    return beams.offers + (len(ends) if beams.min_tokens else 0)


class BeamSearch:
    """One search, from the logits after the prompt to its answers."""

    def __init__(self, beams: BeamSettings, ends: frozenset[int], most: int) -> None:
        """ends: tokens that end an answer. most: tokens of an answer, its end token included."""
        self._beams = beams
        self._ends = ends
        self._most = most
        self._tokens = 0  # of each hypothesis
        self._live = [_Partial((), 0.0)]
        self.answers: list[Hypothesis] = []  # best first

    def advance(self, outcomes: Many[RowResult]) -> list[Continuation]:
        """Take in the results of all hypotheses, in order, and return the next ones.

        A result's `token` is the best end token, with its `logprob`; `top` has the candidates.
        """
        self._end(outcomes)
        choices = sorted(self._candidates(outcomes), key=_by_logprob)[: self._beams.size]
        self._tokens += 1
        self._live = [self._extended(choice) for choice in choices]
        return choices

    @property
    def done(self) -> bool:
        if self._tokens == self._most or not self._live:
            return True
        if self._beams.early_stopping and all(each.over for each in self._live):
            return True
        return len(self.answers) == self._beams.size and not self._can_improve()

    def _end(self, outcomes: Many[RowResult]) -> None:
        if self._tokens < self._beams.min_tokens:
            return
        norm = length_norm(self._tokens + 1, self._beams.length_penalty)
        for live, outcome in zip(self._live, outcomes, strict=True):
            assert outcome.token is not None
            if not live.over and math.isfinite(outcome.logprob):
                logprob = live.logprob + outcome.logprob
                tokens = (*live.tokens, outcome.token)
                self.answers.append(Hypothesis(tokens, logprob, logprob / norm))
        self.answers.sort(key=_by_score)
        del self.answers[self._beams.size :]

    def _candidates(self, outcomes: Many[RowResult]) -> Iterator[Continuation]:
        for parent, (live, outcome) in enumerate(zip(self._live, outcomes, strict=True)):
            for token, logprob in self._offered(outcome):
                if math.isfinite(logprob):
                    yield Continuation(parent, token, live.logprob + logprob)

    def _offered(self, outcome: RowResult) -> list[tuple[int, float]]:
        """Return a hypothesis' likeliest tokens, without those that end it."""
        top, most = outcome.top, self._beams.offers
        if self._tokens < self._beams.min_tokens:
            return [each for each in top if each[0] not in self._ends][:most]
        if self._beams.early_stopping:
            return list(top[:most])
        return [each for each in top[:most] if each[0] not in self._ends]

    def _extended(self, choice: Continuation) -> _Partial:
        parent = self._live[choice.parent]
        over = parent.over or choice.token in self._ends
        return _Partial((*parent.tokens, choice.token), choice.logprob, over)

    def _can_improve(self) -> bool:
        """Compare the worst answer with the best that could come: no token lowers a sum's size."""
        alpha = self._beams.length_penalty
        norm = max(length_norm(self._tokens + 1, alpha), length_norm(self._most, alpha))
        worst = self.answers[-1].score
        return any(not each.over and each.logprob / norm > worst for each in self._live)


def _by_logprob(choice: Continuation) -> float:
    return -choice.logprob


def _by_score(answer: Hypothesis) -> float:
    return -answer.score


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


class BeamSearches(EnginePart[BeamGroup]):
    """All beam searches of a scheduler, by each of their sequences."""

    def __init__(self) -> None:
        super().__init__()
        # By the first beam slot's id: those that wait for its prompt, and where they part from it.
        self._behind: dict[int, list[tuple[Sequence, int]]] = {}

    @classmethod
    def check(cls, request: EngineRequest, limits: EngineLimits, context: int) -> None:
        """Reject a search that has too few slots, or no room to end an answer."""
        beams = request.beams
        if beams is None:
            return
        if limits.windows.recurrent:
            raise InvalidRequest(
                "this model keeps a state of all tokens so far, which hypotheses cannot share: ask "
                "for answers without beams",
                param="beam_size",
            )
        slots = min(limits.slots, limits.max_running_per_account or limits.slots)
        if beams.size > slots:
            raise InvalidRequest(
                f"beam_size is {beams.size} and a caller can have {slots} slots of this model: ask "
                f"for at most {slots} beams, or serve it with more slots (NUM_CACHE_SLOTS)",
                param="beam_size",
            )
        room = min(request.max_tokens, context - len(request.prompt))
        if room <= beams.min_tokens:
            raise InvalidRequest(
                f"min_tokens is {beams.min_tokens} and an answer has room for {room} tokens, its "
                "end token included: ask for fewer, for more max_tokens or for fewer beams",
                param="min_tokens",
            )

    @classmethod
    def context(cls, request: EngineRequest, limits: EngineLimits, context: int) -> int:
        """Hypotheses share the full pages of their prompt, and may have no other in common."""
        if request.beams is None:
            return context
        shared = len(request.prompt) // limits.page_size
        own = (limits.pages - shared) // request.beams.size
        return min(context, (shared + own) * limits.page_size)

    def begin(self, sequence: Sequence) -> BeamGroup | None:
        if sequence.request.beams is None:
            return None
        if sequence.is_follower:
            assert sequence.group is not None
            return self.of[sequence.group[0].id]
        return BeamGroup(sequence)

    def reusable(self, sequence: Sequence, most: int) -> int:
        """Each begins with the window pages that the first one holds where they part."""
        if self.live.held.window_pages is None:
            return most
        beams = sequence.members
        return min([most, *(_parting(beam, beams[0]) for beam in beams[1:] if beam.tokens)])

    def admitted(self, sequence: Sequence) -> None:
        """Begin, or begin again, in slots that all beam slots have just taken."""
        waiting = self.of[sequence.id].begin()
        self._behind[sequence.id] = [(beam, _parting(beam, sequence)) for beam in waiting]
        for beam in waiting:
            beam.goal = len(beam.tokens)  # the pages for it are kept, and it does not decode yet

    def restarted(self, sequence: Sequence) -> None:
        """Results in flight still count."""
        self._behind.pop(sequence.id, None)
        sequence.lost = max(beam.lost for beam in sequence.members)
        if sequence.settled:
            self.of[sequence.id].line_up()

    def ended(self, sequence: Sequence) -> None:
        super().ended(sequence)
        self._behind.pop(sequence.id, None)

    def followed(self, sequence: Sequence) -> list[int]:
        return [position for _, position in self._behind.get(sequence.id, ())]

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        """Tell the answers, best first, once the search of this beam slot is over."""
        if not row.yields:
            return True
        committing.tokens += 1
        if sequence.slot >= 0:
            self.live.held.note(sequence)
        group = self.of[sequence.id]
        first = group.beams[0]
        sequence.in_flight -= 1
        last = group.report(sequence, outcome)
        if sequence is first and first.slot >= 0:
            self._catch_up(first)
        if last:
            self._move(group)
            if group.search.done:
                committing.finish(first)
                committing.tell(_found(first, group.search.answers, committing.span.read_s))
        return True

    def _move(self, group: BeamGroup) -> None:
        """Bring each hypothesis to its beam slot."""
        held, moves = self.live.held, group.advance()
        has_slots = group.beams[0].slot >= 0
        if has_slots:
            for beam in (*(fork[0] for fork in moves.forks), *moves.left):
                self.live.accounts.charge(beam)
                # What was given up is of no use to others: its last page is not kept for them.
                beam.paging.written = beam.paging.kept * self.limits.page_size
                held.release_pages(beam)
            for beam, parent in moves.forks:
                held.follow(beam, parent, parent.launched)
        group.settle(moves)
        if has_slots and held.shares:
            for beam, _ in moves.forks:
                held.cache.follow(beam)
        if not has_slots:
            group.line_up()

    def _catch_up(self, first: Sequence) -> None:
        """Let the others begin where they differ from the first one, whose pages are there."""
        held = self.live.held
        for beam, common in self._behind.pop(first.id, ()):
            held.follow(beam, first, common)
            beam.paging.chain = first.paging.chain[: common // self.limits.page_size + 1]
            if held.shares:
                held.cache.follow(beam)
            beam.goal = len(beam.tokens)
            self.live.accounts.begin_prompt(beam)


def _parting(one: Sequence, other: Sequence) -> int:
    """Return the first position with different tokens in two equally long sequences."""
    pairs = zip(one.tokens, other.tokens, strict=True)
    return next(place for place, (left, right) in enumerate(pairs) if left != right)


def _found(sequence: Sequence, answers: list[Hypothesis], read_s: float) -> SequenceUpdate:
    """Return the last update of a search."""
    error, cached = None, 0
    if answers:
        cached = max(sequence.paging.cached, 0)
    else:
        error = InvalidRequest(
            "beam search found no answer: the model never gives an end token any probability; set "
            "stop_token_ids, or leave out beam_size",
            param="beam_size",
        )
    return SequenceUpdate(
        sequence.id,
        RowResult(),
        "stop" if answers else None,
        error,
        cached,
        tuple(answers),
        read_s,
        sequence.started_s,
    )
