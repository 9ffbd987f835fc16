"""Series: decode steps of the same sequences that one launch computes. Pure.

Behind a proxy server a launch costs as much processor time as a small model's step, so several
steps share one where nothing can come up between them: nobody waits, no prompt is computed, every
running sequence has a row in each of the steps, pages for all of them are free, and no step needs
what the host knows only after the one before.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_server.engine.limits import EngineLimits
from model_server.engine.sequence import Sequence
from model_server.engine.types import Step

_LONGEST_S = 0.15  # that a series may take: whoever arrives meanwhile waits for it


class StepSeries:
    """Tells when a step may be the first of a series."""

    def __init__(self, limits: EngineLimits) -> None:
        self.steps = limits.steps_per_launch
        self._limits = limits
        self._step_s = 0.0  # that a step of decodes took last

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step took, from when the one before was read."""
        if step.rows[-1].is_decode:
            self._step_s = seconds

    def begins_with(self, step: Step, running: Iterable[Sequence], pages: int) -> bool:
        """Return True if `steps - 1` more decodes of all its sequences can follow.

        step: just scheduled, with nobody waiting. pages: that are free.
        """
        running = list(running)
        if self.steps < 2 or step.guided or len(step.rows) != len(running):
            return False
        if not all(row.is_decode for row in step.rows) or self._step_s * self.steps > _LONGEST_S:
            return False
        return all(map(self._can_go_on, running)) and sum(map(self._pages, running)) <= pages

    def _can_go_on(self, sequence: Sequence) -> bool:
        if sequence.group is not None:
            return False
        if any(part.is_stepwise(sequence) for part in sequence.parts):
            return False
        return sequence.launched + self.steps - 1 <= sequence.limit

    def _pages(self, sequence: Sequence) -> int:
        """Return the pages that the steps after the first take."""
        ahead = sequence.launched + self.steps - 1
        return max(0, -(-ahead // self._limits.page_size) - len(sequence.pages))
