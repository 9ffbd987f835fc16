"""Decides how many guesses each sequence tries in a step. Pure.

A step of a compiled size has rows for so many guesses beside one row per sequence. They go where
one more guess adds most. Sizes are compared by the sum of the logarithms of all sequences' speeds:
a stream that guesses nothing is not slowed down by half so that another becomes twice as fast.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from model_server.engine.guessing.costs import StepCosts

_WORTH = 0.03  # the least gain per sequence for which the pipeline of steps is given up


def allot(
    chances: Mapping[int, Sequence[float]],
    decodes: int,
    most: int,
    costs: StepCosts,
    *,
    ahead: bool,
) -> Mapping[int, int]:
    """Return the number of guesses for each sequence id; empty: none pays.

    chances: for each id and its first, second, ... guess the chance that it is accepted. decodes:
    rows of the step without guesses. most: rows of any step. ahead: the step could be launched at
    once without guesses; with them it has to wait until the one before was read.
    """
    gains = sorted(_gains(chances), reverse=True)
    plain_s = costs.of(decodes, late=not ahead)
    best, best_worth = 0, _WORTH * decodes if ahead else 0.0
    for size in costs.sizes:
        count = min(size, most, decodes + len(gains)) - decodes
        if count <= best:
            continue
        gained = sum(gain for gain, _ in gains[:count])
        lost = math.log(costs.of(decodes + count, late=True) / plain_s)
        worth = gained - decodes * lost
        if worth > best_worth:
            best, best_worth = count, worth
    return Counter(id for _, id in gains[:best])


def _gains(chances: Mapping[int, Sequence[float]]) -> list[tuple[float, int]]:
    """Return each guess's gain in the logarithm of its sequence's speed; the first gain most."""
    made: list[tuple[float, int]] = []
    for id, row in chances.items():
        speed = 1.0  # tokens per step
        for chance in row:
            made.append((math.log1p(chance / speed), id))
            speed += chance
    return made
