"""Histograms for a terminal: a bar of text for each range of values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def histogram(values: Sequence[float], bars: int = 8, width: int = 40) -> Iterator[str]:
    """Draw how many values fall into each of `bars` ranges of the same width."""
    if not values:
        return
    low, high = min(values), max(values)
    counts = counted(values, bars)
    step = (high - low) / bars
    edges = [f"{low + step * place:,.1f}" for place in range(bars + 1)]
    column = max(map(len, edges))
    for place, number in enumerate(counts):
        bar = _bar(number / max(counts), width)
        yield f"{edges[place]:>{column}} - {edges[place + 1]:>{column}} {bar:<{width}} {number}"


def counted(values: Sequence[float], bars: int) -> list[int]:
    """Count the values in each of `bars` ranges between the least and the most of them."""
    low, high = min(values), max(values)
    counts = [0] * bars
    for value in values:
        share = (value - low) / (high - low) if high > low else 0.0
        counts[min(bars - 1, math.floor(share * bars))] += 1
    return counts


def _bar(share: float, width: int) -> str:
    eighths = math.ceil(share * width * 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")
