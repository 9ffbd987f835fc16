"""How many draft tokens each sequence tries in a step, and what those of a draft model cost. Pure.

A step of a compiled size has rows for so many draft tokens beside one row per sequence. They go
where one more draft token adds most. Sizes are compared by the sum of the logarithms of all
sequences' speeds: a stream without draft tokens is not slowed down by half so that another becomes
twice as fast. A lookup's draft tokens cost nothing but their rows. Those of a draft model take time
before the step, the longer the more of them follow each other, so that each depth is compared, too.

Odds are frequencies of right predictions, by how many in a row were right before. Predictions are
counted whether or not they were tried on the device: what they would have gained is known anyhow.
Unlike a lookup, a draft model is only known to be right or wrong once it was asked, and asking
takes time. So its odds and its time fade back to what is assumed and was measured at load while it
is not asked, and it is tried again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from model_server.engine.buckets import closed_set
from model_server.engine.running.ops import Beginning, Proposals, Propose, Runner
from model_server.engine.sequence import Sequence as Running
from model_server.engine.step_times import StepTimes

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


_WAITING = 1.1  # a step that the host launches late, before any was measured
_TREND, _NEW_GAP = 0.05, 0.25  # weight of one more step
_GAP_FADE = 0.998  # per step
_MOST_GAP = 8.0  # an interval longer than so many times what was expected was something else
_WORTH = 0.03  # the least gain per sequence for which the pipeline of steps is given up
_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32)

Chances = Mapping[int, Sequence[float]]
Gains = list[tuple[float, int]]  # what a draft token adds, and its sequence's id; best first


class StepCosts:
    """Seconds of decode steps."""

    def __init__(self, times: StepTimes | None, rows: int) -> None:
        """rows: the most of a step. Without times all steps are taken to cost the same."""
        self._measures = times is not None
        self._loaded: dict[int, float] = {}
        if times is not None:
            compiled = {bucket.decodes for bucket in times.buckets if not bucket.blocks}
            # Where padding is skipped, steps of one shape differ by their rows.
            told = {bucket.decodes for bucket in closed_set(max(compiled), ())}
            sizes = compiled | told if times.skips else compiled
            self._loaded = {size: times.of(size, 0) for size in sizes}
        else:
            self._loaded = {bucket.decodes: 1.0 for bucket in closed_set(rows, ())}
        self.sizes = tuple(sorted(self._loaded))  # rows of the compiled steps
        self._trend = 1.0  # of seconds to those at load
        self._ratios: dict[tuple[int, bool], tuple[float, int]] = {}  # and the step of the last one
        self._steps = 0

    def of(self, rows: int, *, late: bool) -> float:
        """Return the seconds of a step. late: launched when the one before was read."""
        size = next(size for size in self.sizes if size >= rows)
        ratio, step = self._ratios.get((size, late), (self._trend, self._steps))
        ratio = self._trend + (ratio - self._trend) * _GAP_FADE ** (self._steps - step)
        return ratio * self._first(size, late)

    def note(self, rows: int, seconds: float, *, late: bool) -> None:
        """Take in a step that ran."""
        if not self._measures:
            return
        size = next(size for size in self.sizes if size >= rows)
        held, _ = self._ratios.get((size, late), (self._trend, 0))
        ratio = seconds / self._first(size, late)
        self._steps += 1
        if ratio > _MOST_GAP * held:
            return
        self._trend += _TREND * (ratio - self._trend)
        self._ratios[size, late] = held + _NEW_GAP * (ratio - held), self._steps

    def _first(self, size: int, late: bool) -> float:
        return self._loaded[size] * (_WAITING if late and self._measures else 1.0)


class Allotment(NamedTuple):
    """Draft tokens for each sequence id, and the ids whose draft tokens the draft model makes."""

    counts: Mapping[int, int]
    drafted: frozenset[int] = frozenset()


def allot(
    chances: Chances, decodes: int, most: int, costs: StepCosts, *, ahead: bool
) -> Mapping[int, int]:
    """Return the number of draft tokens for each sequence id; empty: none pays.

    chances: for each id and its first, second, ... draft token the chance that it is accepted.
    decodes: rows of the step without draft tokens. most: rows of any step. ahead: the step could be
    launched at once without draft tokens; with them it has to wait until the one before was read.
    """
    gains = _gains(chances)
    count, _ = _best(gains, decodes, most, costs, ahead=ahead)
    return Counter(id for _, id in gains[:count])


def allot_drafted(
    looked: Chances,
    drafted: Chances,
    decodes: int,
    most: int,
    costs: StepCosts,
    draft_s: float,
    *,
    ahead: bool,
) -> Allotment:
    """Return the draft tokens as `allot` does, each sequence's by what has the better chances.

    looked, drafted: chances of draft tokens by lookup and of the draft model. draft_s: what one
    draft token of the draft model for every sequence takes.
    """
    best, best_worth = Allotment({}), 0.0
    deepest = max(map(len, drafted.values()), default=0)
    for depth in (0, *(each for each in _DEPTHS if each <= deepest)):
        by_draft = frozenset(
            id for id, row in drafted.items() if sum(row[:depth]) > sum(looked.get(id, ()))
        )
        gains = _gains({**looked, **{id: drafted[id][:depth] for id in by_draft}})
        count, worth = _best(gains, decodes, most, costs, ahead=ahead, before_s=depth * draft_s)
        if count and worth > best_worth:
            counts = Counter(id for _, id in gains[:count])
            best, best_worth = Allotment(counts, by_draft & counts.keys()), worth
    return best


def _best(
    gains: Gains,
    decodes: int,
    most: int,
    costs: StepCosts,
    *,
    ahead: bool,
    before_s: float = 0.0,
) -> tuple[int, float]:
    """Return how many of the gains to take, and what that is worth; 0: none pays.

    before_s: what the draft tokens take before the step.
    """
    plain_s = costs.of(decodes, late=not ahead)
    best, best_worth = 0, _WORTH * decodes if ahead else 0.0
    for size in costs.sizes:
        count = min(size, most, decodes + len(gains)) - decodes
        if count <= best:
            continue
        gained = sum(gain for gain, _ in gains[:count])
        lost = math.log((costs.of(decodes + count, late=True) + before_s) / plain_s)
        worth = gained - decodes * lost
        if worth > best_worth:
            best, best_worth = count, worth
    return best, best_worth


def _gains(chances: Chances) -> Gains:
    """Return each draft token's gain in the logarithm of its sequence's speed, best first."""
    made: Gains = []
    for id, row in chances.items():
        speed = 1.0  # tokens per step
        for chance in row:
            made.append((math.log1p(chance / speed), id))
            speed += chance
    return sorted(made, reverse=True)
