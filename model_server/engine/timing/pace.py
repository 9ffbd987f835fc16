"""Limits the prompt blocks of steps that also decode, so that running streams stay steady. Pure.

A step with prompt blocks makes every stream in it wait for those too. On average such steps may
take RATIO times as long as the decodes alone. What steps take less is saved, up to CREDIT_S, and
longer ones may use it: a burst of prompts is computed in full steps, which takes the least time in
all, and only prompts that keep coming are held back. Where already one block takes longer, decodes
run alone in between.

A stream that begins gives back what its own prompt took, up to GRANT_S: prompts of usual length
come as fast as they can be computed, since holding them back saves no work, and only long ones keep
the ratio. Beside other callers' streams a caller gives back less, the more streams it has.

Steps were timed at load over empty sequences; the times are corrected by what steps take at
present, which is more towards the end of a long prompt.
"""

from __future__ import annotations

from model_server.engine.timing.step_times import StepTimes
from model_server.engine.types import Step

RATIO = 1.8
CREDIT_S = 2.0  # a burst of 32 prompts of 128 tokens on two cores
GRANT_S = 1.0
_NEW = 0.1  # weight of the latest step in the correction
_LEAST, _MOST = 0.5, 4.0  # of one step's: beyond them the host was busy with something else


class Pace:
    """Allots prompt blocks from measured times."""

    def __init__(self, times: StepTimes | None, most: int | None) -> None:
        """most: blocks per step, instead of what times allow. Without either there is no limit."""
        self._times = times
        self._most = most
        self._credit_s = CREDIT_S
        self._slower = [1.0, 1.0]  # seconds of steps now, by those at load: decodes alone; others

    def blocks(self, decodes: int) -> int | None:
        """Return the blocks that the next step may hold beside its decodes; None: no limit."""
        if not decodes or self._most is not None or self._times is None:
            return self._most if decodes else None
        times = self._times
        allowed_s = RATIO * self._seconds(times, decodes, 0) + self._credit_s
        sizes = {bucket.blocks for bucket in times.buckets}
        if times.skips:
            sizes = set(range(max(sizes) + 1))
        fitting = (size for size in sizes if self._seconds(times, decodes, size) <= allowed_s)
        return max(fitting, default=0)

    def took(self, step: Step, seconds: float) -> None:
        """Note how long a step took, from when the one before was read."""
        if self._times is None:
            return
        decodes, blocks = self._times.shape(step)
        slower = min(max(seconds / self._times.of(decodes, blocks), _LEAST), _MOST)
        kind = int(blocks > 0)
        self._slower[kind] += _NEW * (slower - self._slower[kind])
        if not decodes:
            self._credit_s = CREDIT_S  # nobody waited
            return
        # A host that was busy with something else is no reason to hold prompts back.
        counted_s = slower * self._times.of(decodes, blocks)
        saved_s = RATIO * self._seconds(self._times, decodes, 0) - counted_s
        most_s = max(CREDIT_S, self._seconds(self._times, decodes, 1))  # one block always fits
        self._credit_s = min(most_s, self._credit_s + saved_s)

    def begin(self, tokens: int, share: float) -> None:
        """Note that a stream begins, whose prompt had so many tokens to compute.

        share: of their time that it gives back.
        """
        if self._times is None:
            return
        granted_s = min(GRANT_S, tokens * self._times.prompt_token_s * self._slower[1])
        self._credit_s = max(self._credit_s, min(CREDIT_S, self._credit_s + share * granted_s))

    def _seconds(self, times: StepTimes, decodes: int, blocks: int) -> float:
        return times.of(decodes, blocks) * self._slower[int(blocks > 0)]
