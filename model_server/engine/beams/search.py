"""Beam search on values, with the semantics of Saxml's (praxis). Pure.

After each token every hypothesis offers two kinds of candidates. Its best end token makes an answer
of it: of all answers so far, those with the best normalised scores are kept, as many as there are
beams. Its likeliest tokens, again as many or `tokens_per_beam`, go on: of all of those that are no
end tokens, the ones with the best sums of log-probabilities are the next hypotheses. Ties go to the
earlier hypothesis, and to its likelier token. A hypothesis that does not end in time is no answer.

`tokens_per_beam` may be more than the beams, which matters if several end tokens are likely, or
fewer: then hypotheses stay more different, and some places are empty until enough of them exist.

With early stopping, as there, an end token competes with the others for a place among the
hypotheses, and the search ends as soon as each of them holds one. A hypothesis that holds one is
extended like any other, but, unlike there, makes no further answer.

There hypotheses that do not exist have scores around -1e9. Here they are left out, which changes
nothing: they could only take places that nothing else wants. For the same reason a search ends
before its last token if no hypothesis can become a better answer any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import NamedTuple

from model_server.engine.types import BeamSettings, Hypothesis, RowResult, Sampling


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
