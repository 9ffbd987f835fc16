"""Percentiles of measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Count, mean and percentiles of many times, in their unit."""

    count: int
    mean: float
    percentiles: dict[int, float]
    most: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in ascending order, between neighbours by linear interpolation.

    Raises ValueError without a value.
    """
    if not ordered:
        raise ValueError("there is no percentile of no values")
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def distribution(values: Sequence[float]) -> Distribution | None:
    """Describe values in any order; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    shown = {percent: percentile(ordered, percent) for percent in SHOWN}
    mean = math.fsum(ordered) / len(ordered)
    return Distribution(len(ordered), mean, shown, ordered[-1])
