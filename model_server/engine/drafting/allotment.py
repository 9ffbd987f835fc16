"""Decides how many draft tokens each sequence tries in a step. Pure.

A step of a compiled size has rows for so many draft tokens beside one row per sequence. They go
where one more draft token adds most. Sizes are compared by the sum of the logarithms of all
sequences' speeds: a stream without draft tokens is not slowed down by half so that another becomes
twice as fast.

A lookup's draft tokens cost nothing but their rows. Those of a draft model take time before the
step, the longer the more of them follow each other, so that each depth is compared, too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from model_server.engine.buckets import closed_set
from model_server.engine.step_times import StepTimes

_WAITING = 1.1  # a step that the host launches late, before any was measured
_TREND, _NEW = 0.05, 0.25  # weight of one more step
_FADE = 0.998  # per step
_MOST = 8.0  # an interval longer than so many times what was expected was something else
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
        ratio = self._trend + (ratio - self._trend) * _FADE ** (self._steps - step)
        return ratio * self._first(size, late)

    def note(self, rows: int, seconds: float, *, late: bool) -> None:
        """Take in a step that ran."""
        if not self._measures:
            return
        size = next(size for size in self.sizes if size >= rows)
        held, _ = self._ratios.get((size, late), (self._trend, 0))
        ratio = seconds / self._first(size, late)
        self._steps += 1
        if ratio > _MOST * held:
            return
        self._trend += _TREND * (ratio - self._trend)
        self._ratios[size, late] = held + _NEW * (ratio - held), self._steps

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
