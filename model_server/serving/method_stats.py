"""Request counts and latencies of one method over the last minute. Pure: time is an argument."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_S = 60
_SAMPLES = 1000  # latencies kept for percentiles; the rates count every request


@dataclass(frozen=True, slots=True)
class MethodSnapshot:
    """Figures reported by GetStatus; latencies are None if no request succeeded."""

    pending: int
    errors_per_second: float
    successes_per_second: float
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class MethodStats:
    def __init__(self) -> None:
        self.pending = 0
        self.arrived = 0  # since start, as are the next two
        self.succeeded = 0
        self.failed = 0
        self._successes = WindowCount()
        self._errors = WindowCount()
        self._latencies: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)  # (now, seconds)

    def begin(self) -> None:
        self.pending += 1
        self.arrived += 1

    def succeed(self, now: float, latency_s: float) -> None:
        self.pending -= 1
        self.succeeded += 1
        self._successes.add(now)
        self._latencies.append((now, latency_s))

    def fail(self, now: float) -> None:
        self.pending -= 1
        self.failed += 1
        self._errors.add(now)

    def leave(self) -> None:
        """The caller went away: counts neither as a success nor as an error."""
        self.pending -= 1

    def snapshot(self, now: float) -> MethodSnapshot:
        """Return the figures of the window that ends now."""
        recent = sorted(latency for at, latency in self._latencies if at > now - WINDOW_S)
        return MethodSnapshot(
            pending=self.pending,
            errors_per_second=self._errors.rate(now),
            successes_per_second=self._successes.rate(now),
            mean_s=sum(recent) / len(recent) if recent else None,
            p50_s=percentile(recent, 0.50),
            p95_s=percentile(recent, 0.95),
            p99_s=percentile(recent, 0.99),
        )


class WindowCount:
    """Counts events in the last WINDOW_S seconds, in one bucket per second."""

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque()  # [second, events]

    def add(self, now: float) -> None:
        second = int(now)
        if self._buckets and self._buckets[-1][0] == second:
            self._buckets[-1][1] += 1
        else:
            self._forget(second)
            self._buckets.append([second, 1])

    def rate(self, now: float) -> float:
        """Events per second over the window."""
        self._forget(int(now))
        return _total(self._buckets) / WINDOW_S

    def _forget(self, second: int) -> None:
        while self._buckets and self._buckets[0][0] <= second - WINDOW_S:
            self._buckets.popleft()


def percentile(ordered: list[float], fraction: float) -> float | None:
    """Nearest-rank percentile: the smallest value that at least this fraction does not exceed."""
    if not ordered:
        return None
    return ordered[max(1, math.ceil(fraction * len(ordered))) - 1]


def _total(buckets: Iterable[list[int]]) -> int:
    return sum(count for _, count in buckets)
