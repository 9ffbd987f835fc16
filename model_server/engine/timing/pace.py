"""Limits the prompt blocks of steps that also decode, so that running streams stay steady. Pure.

A step with prompt blocks makes every stream in it wait for those too. Such steps may take RATIO
times as long as the decodes alone. Where already one block takes longer, decodes run alone in
between, so that the mean holds: each such step saves time, and a block is computed once enough is
saved. Steps were timed at load over empty sequences; the times are corrected by what steps take at
present, which is more towards the end of a long prompt.
"""

from __future__ import annotations

from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import Step

RATIO = 2.0
_NEW = 0.1  # weight of the latest step in the correction
_LEAST, _MOST = 0.5, 4.0  # of one step's: beyond them the host was busy with something else


class Pace:
    """Allots prompt blocks from measured times."""

    def __init__(self, times: StepTimes | None, most: int | None) -> None:
        """most: blocks per step, instead of what times allow. Without either there is no limit."""
        self._times = times
        self._most = most
        self._saved_s = 0.0
        self._slower = [1.0, 1.0]  # seconds of steps now, by those at load: decodes alone; others

    def blocks(self, decodes: int) -> int | None:
        """Return the blocks that the next step may hold beside its decodes; None: no limit.

        Called once for each step while prompts wait.
        """
        if not decodes or self._most is not None or self._times is None:
            return self._most if decodes else None
        return self._fitting(self._times, decodes) or self._save(self._times, decodes)

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step took, from when the one before was read."""
        if self._times is None:
            return
        decodes, blocks = self._times.shape(step)
        slower = min(max(seconds / self._times.of(decodes, blocks), _LEAST), _MOST)
        kind = int(blocks > 0)
        self._slower[kind] += _NEW * (slower - self._slower[kind])

    def _seconds(self, times: StepTimes, decodes: int, blocks: int) -> float:
        return times.of(decodes, blocks) * self._slower[int(blocks > 0)]

    def _fitting(self, times: StepTimes, decodes: int) -> int:
        """Return the most blocks of a step at most RATIO times as long as its decodes."""
        allowed_s = RATIO * self._seconds(times, decodes, 0)
        sizes = {bucket.blocks for bucket in times.buckets}
        if times.skips:
            sizes = set(range(max(sizes) + 1))
        fitting = (size for size in sizes if self._seconds(times, decodes, size) <= allowed_s)
        return max(fitting, default=0)

    def _save(self, times: StepTimes, decodes: int) -> int:
        """Return 1 if a block fits what this step and earlier ones may take, else 0."""
        decodes_s, block_s = (self._seconds(times, decodes, blocks) for blocks in (0, 1))
        lacking_s = block_s - RATIO * decodes_s
        if self._saved_s >= lacking_s:
            self._saved_s = 0.0
            return 1
        self._saved_s += (RATIO - 1) * decodes_s
        return 0
