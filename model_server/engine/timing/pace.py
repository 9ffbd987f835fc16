"""Limits the prompt blocks of steps that also decode, so that running streams stay steady. Pure.

A step with prompt blocks makes every stream in it wait for those too. Such steps may take RATIO
times as long as the decodes alone. Where already one block takes longer, decodes run alone in
between, so that the mean holds: each such step saves time, and a block is computed once enough is
saved.
"""

from __future__ import annotations

from model_server.engine.timing.step_times import StepTimes

RATIO = 2.0


class Pace:
    """Allots prompt blocks from measured times."""

    def __init__(self, times: StepTimes | None, most: int | None) -> None:
        """most: blocks per step, instead of what times allow. Without either there is no limit."""
        self._times = times
        self._most = most
        self._saved_s = 0.0
        self._fitting: dict[int, int] = {}  # blocks that fit a step with so many decodes

    def blocks(self, decodes: int) -> int | None:
        """Return the blocks that the next step may hold beside its decodes; None: no limit.

        Called once for each step while prompts wait.
        """
        if not decodes or self._most is not None or self._times is None:
            return self._most if decodes else None
        if decodes not in self._fitting:
            self._fitting[decodes] = _fitting(self._times, decodes)
        return self._fitting[decodes] or self._save(self._times, decodes)

    def _save(self, times: StepTimes, decodes: int) -> int:
        """Return 1 if a block fits what this step and earlier ones may take, else 0."""
        decodes_s, block_s = times.of(decodes, 0), times.of(decodes, 1)
        lacking_s = block_s - RATIO * decodes_s
        if self._saved_s >= lacking_s:
            self._saved_s = 0.0
            return 1
        self._saved_s += (RATIO - 1) * decodes_s
        return 0


def _fitting(times: StepTimes, decodes: int) -> int:
    """Return the most blocks of a step that takes at most RATIO times as long as its decodes."""
    allowed_s = RATIO * times.of(decodes, 0)
    sizes = {bucket.blocks for bucket in times.buckets}
    return max(size for size in sizes if times.of(decodes, size) <= allowed_s)
