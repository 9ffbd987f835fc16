"""BucketCounts: a histogram that is cheap to feed, several times per step of the engine."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class BucketCounts:
    """Counts values in buckets. Fed by one thread; read by any, a value late at most.

    A histogram of prometheus_client takes a lock and four calls per value; this one a bisection.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """bounds: the highest value of each bucket, ascending; one without bound follows."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bound as Prometheus writes it, with the number of values up to it."""
        names = (*map(floatToGoString, self._bounds), "+Inf")
        return [(name, float(n)) for name, n in zip(names, accumulate(self._counts), strict=True)]
