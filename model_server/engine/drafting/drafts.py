"""A draft model's tokens: the chance that they are right, and what they cost. Pure.

Odds are frequencies of right predictions, by how many in a row were right before. Predictions are
counted whether or not they were tried on the device: what they would have gained is known anyhow.

Unlike a lookup, a draft model is only known to be right or wrong once it was asked, and asking
takes time. So its odds and its time fade back to what is assumed and was measured at load while it
is not asked, and it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from model_server.engine.running.ops import Beginning, Proposals, Propose, Runner
from model_server.engine.sequence import Sequence as Running

# Assumed of a model not seen yet: after 0, 1, 2, 4, 8 in a row.
_FIRST_ODDS = (0.4, 0.5, 0.65, 0.8, 0.9)
_OWN, _SHARED = 0.1, 0.01  # weight of one more prediction
_FIRST = (0.6, 0.65, 0.7, 0.75, 0.8)  # assumed of a draft model: after 0, 1, 2, 4, 8 right ones
_FADE = 0.005  # per step in which it is not asked
_NEW = 0.25  # weight of one more measured time
_MOST = 3.0  # times what was expected: what took longer counts as this, as it was something else


class Odds:
    """Odds of one sequence, which begin as those of the sequences before it."""

    __slots__ = ("_first", "_rates", "_shared")

    def __init__(self, shared: Odds | None = None, first: tuple[float, ...] = _FIRST_ODDS) -> None:
        """first: of one without others before it."""
        self._shared = shared
        self._first = shared._first if shared else first
        self._rates = list(shared._rates if shared else first)

    def note(self, run: int, right: bool) -> None:
        """Count a prediction that came after `run` right ones."""
        place = _place(run)
        self._rates[place] += _OWN * (right - self._rates[place])
        if self._shared is not None:
            rates = self._shared._rates
            rates[place] += _SHARED * (right - rates[place])

    def fade(self, weight: float) -> None:
        """Move towards what is assumed first: nothing was seen for a while."""
        for place, first in enumerate(self._first):
            self._rates[place] += weight * (first - self._rates[place])

    def of_runs(self, run: int, most: int) -> list[float]:
        """Return for 1, 2, ... further predictions the chance that all of them come true."""
        chance, chances = 1.0, []
        for more in range(most):
            chance *= self._rates[_place(run + more)]
            chances.append(chance)
        return chances


def _place(run: int) -> int:
    return min(run.bit_length(), len(_FIRST_ODDS) - 1)


class Drafts:
    """The draft model of one engine."""

    def __init__(self, runner: Runner, page_size: int) -> None:
        """runner: one that proposes."""
        self.proposed = 0  # draft tokens tried
        self.accepted = 0  # that were right
        self._runner = runner
        self._load_s = runner.ops[Propose]  # seconds of one draft token, by rows
        self._page_size = page_size
        self._odds = Odds(first=_FIRST)
        self._own: dict[int, Odds] = {}  # by sequence
        self._asked: frozenset[int] = frozenset()  # sequences with draft tokens in flight
        self._runs: dict[int, int] = {}  # its right draft tokens so far, until one is wrong
        self._ratio = 1.0  # of seconds to those at load
        self._spent_s = 0.0

    def chances(
        self, running: Sequence[Running], room: Callable[[Running], int]
    ) -> dict[int, list[float]]:
        """Return for each sequence's 1, 2, ... draft tokens the chance that all are right."""
        return {
            each.id: self._odds_of(each.id).of_runs(0, count)
            for each in running
            if (count := room(each)) > 0
        }

    def reach(self, sequence: Running) -> int:
        """Return how many draft tokens the pages that the sequence has allow."""
        return max(0, len(sequence.pages) * self._page_size - sequence.launched)

    def seconds(self, rows: int) -> float:
        """Return what one draft token for each of so many sequences takes."""
        return self._ratio * self._load_s[min(size for size in self._load_s if size >= rows)]

    def draft_tokens(self, wanted: Sequence[tuple[Running, int]]) -> dict[int, tuple[int, ...]]:
        """Ask for so many draft tokens of each sequence. No step may be in flight."""
        beginnings = tuple(
            Beginning(each.slot, each.launched, each.tokens[-1], count) for each, count in wanted
        )
        expected_s = self.seconds(len(wanted)) * max(count for _, count in wanted)
        made: Proposals = self._runner.do(Propose(beginnings)).result()
        self._spent_s += made.seconds
        if expected_s:
            self._ratio *= 1 + _NEW * (min(made.seconds / expected_s, _MOST) - 1)
        self._runs = {each.id: 0 for each, _ in wanted}
        self._asked = frozenset(self._runs)
        return {each.id: tokens for (each, _), tokens in zip(wanted, made.tokens, strict=True)}

    def begin(self) -> None:
        """Begin a step; nobody was asked for it yet."""
        self._runs = {}
        self._asked = frozenset()

    def note(self, id: int, right: bool) -> None:
        """Take in the outcome of the next draft token that was tried, if this draft model made it.

        Those after a wrong one say nothing about its odds.
        """
        if id not in self._asked:
            return
        self.proposed += 1
        self.accepted += right
        run = self._runs.get(id)
        if run is None:
            return
        self._odds_of(id).note(run, right)
        if right:
            self._runs[id] = run + 1
        else:
            del self._runs[id]

    def rest(self) -> None:
        """Note that nobody was asked before a step that could have tried draft tokens."""
        self._ratio += _FADE * (1.0 - self._ratio)
        self._odds.fade(_FADE)
        for odds in self._own.values():
            odds.fade(_FADE)

    def take_spent(self) -> float:
        """Return the seconds spent on draft tokens since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def forget(self, id: int) -> None:
        self._own.pop(id, None)
        self._runs.pop(id, None)

    def _odds_of(self, id: int) -> Odds:
        if id not in self._own:
            self._own[id] = Odds(self._odds)
        return self._own[id]
