"""Costs of decode steps, by rows, launched ahead or after the step before was read. Pure.

Begins with the times measured at load and goes on with those of the steps that run: longer
contexts, other work of the host, and the time in which the device waits for it. A figure that was
not confirmed for long fades into the common trend, so what was once dear is tried again.
"""

from __future__ import annotations

from model_server.engine.buckets import closed_set
from model_server.engine.timing.step_times import StepTimes

_WAITING = 1.1  # a step that the host launches late, before any was measured
_TREND, _NEW = 0.05, 0.25  # weight of one more step
_FADE = 0.998  # per step
_MOST = 8.0  # an interval longer than so many times what was expected was something else


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
