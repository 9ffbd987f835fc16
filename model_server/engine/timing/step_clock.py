"""What each step took, from when the one before was read, or from its own launch."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

from model_server.engine.request import StepSpan
from model_server.engine.types import Step


class StepClock:
    """Notes the times of one engine's steps, on its thread."""

    def __init__(self, took: Callable[[Step, float], None]) -> None:
        """took: told the seconds of each step that was behind no op."""
        self.began_s = 0.0  # when it last began to launch with nothing in flight
        self.read_s: float | None = None  # when the last step was read; None: it has rested since
        self.behind_ops: set[int] = set()  # steps in flight behind an op
        self._took = took

    def read(self, steps: list[Step]) -> list[StepSpan]:
        """Return the span of each step of one launch, just read; they follow each other evenly."""
        now_s = time.monotonic()
        if self.read_s is not None:
            for step in steps:
                if step.number not in self.behind_ops:
                    self._took(step, (now_s - self.read_s) / len(steps))
        self.behind_ops.difference_update(step.number for step in steps)
        began_s = max(self.began_s, self.read_s or 0.0)
        self.read_s = now_s
        each_s = (now_s - began_s) / len(steps)
        ends = [began_s + each_s * number for number in range(1, len(steps))]
        return [StepSpan(*pair) for pair in pairwise((began_s, *ends, now_s))]
