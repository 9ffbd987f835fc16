"""Times of the compiled steps of one model, as measured at its load and while it runs. No jax.

`Pace` limits the prompt blocks of steps that also decode, so that running streams stay steady.

A step with prompt blocks makes every stream in it wait for those too. On average such steps may
take RATIO times as long as the decodes alone. What steps take less is saved, up to CREDIT_S, and
longer ones may use it: a burst of prompts is computed in full steps, which takes the least time in
all, and only prompts that keep coming are held back. Where already one block takes longer, decodes
run alone in between.

No step with more than one block takes longer than BURST_S beside decodes, or BURST_RATIO times the
decodes alone where these are long themselves: a burst is then divided, and computes at most an
eighth more.

A stream that begins gives back what its own prompt took, up to GRANT_S: prompts of usual length
come as fast as they can be computed, since holding them back saves no work, and only long ones keep
the ratio. Beside other callers' streams a caller gives back less, the more streams it has.

Steps were timed at load over empty sequences; the times are corrected by what steps take at
present, which is more towards the end of a long prompt.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from model_server.engine.buckets import Bucket, choose
from model_server.engine.request import StepSpan
from model_server.engine.types import Step

RATIO = 1.8
CREDIT_S = 2.0  # a burst of 32 prompts of 128 tokens on two cores
GRANT_S = 1.0
BURST_S = 0.15
BURST_RATIO = 8.0
_NEW = 0.1  # weight of the latest step in the correction
_LEAST, _MOST = 0.5, 4.0  # of one step's: beyond them the host was busy with something else


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds per bucket, over empty sequences: long ones take somewhat longer.

    Where padding rows are skipped, a step takes what its own rows take: between the full buckets
    that were measured lies a straight line.
    """

    buckets: tuple[Bucket, ...]
    seconds: tuple[float, ...]  # one per bucket
    block: int  # tokens of a prompt block
    skips: bool = False  # padding rows take no time

    @classmethod
    def measured(
        cls,
        buckets: Sequence[Bucket],
        seconds: Sequence[float],
        block: int,
        *,
        skips: bool = False,
    ) -> StepTimes | None:
        """Return the times if there is one for each bucket; further ones are of other programs.

        A step takes no longer than a larger one: if it did, the host was busy with something else.
        """
        if len(seconds) < len(buckets):
            return None
        pairs = list(zip(buckets, seconds, strict=False))
        least = (min(took for other, took in pairs if _holds(other, each)) for each in buckets)
        return cls(tuple(buckets), tuple(least), block, skips)

    @property
    def longest_s(self) -> float:
        return max(self.seconds)

    @property
    def prompt_token_s(self) -> float:
        """Seconds that a token of a prompt adds to a large step."""
        largest = max(self.buckets, key=lambda bucket: (bucket.blocks, bucket.decodes))
        if not largest.blocks:
            return 0.0
        alone_s = self.of(largest.decodes, 0)
        return (self.of(largest.decodes, largest.blocks) - alone_s) / (largest.blocks * self.block)

    def shape(self, step: Step) -> tuple[int, int]:
        """Return the decodes and the prompt blocks of a step."""
        decodes = sum(row.is_decode for row in step.rows)
        prompts = (row.count for row in step.rows if not row.is_decode)
        return decodes, sum(-(-count // self.block) for count in prompts)

    def bucket(self, decodes: int, blocks: int) -> Bucket:
        """Return the bucket of a step. Raises ValueError if none holds it."""
        return choose(self.buckets, decodes, blocks, self.block)

    def of(self, decodes: int, blocks: int) -> float:
        """Return the seconds of a step. Raises ValueError if no bucket holds it."""
        bucket = self.bucket(decodes, blocks)
        if self.skips:
            return self._of_tokens(decodes + blocks * self.block)
        return self.seconds[self.buckets.index(bucket)]

    def _of_tokens(self, tokens: int) -> float:
        """Return the seconds of a step with so many rows, none of them padding."""
        sizes = [bucket.tokens(self.block) for bucket in self.buckets]
        points = sorted(zip(sizes, self.seconds, strict=True))
        above = min(bisect_left(points, (tokens, 0.0)), len(points) - 1)
        (low, low_s), (high, high_s) = points[max(above - 1, 0)], points[above]
        if tokens <= low or high == low:
            return low_s
        return low_s + (high_s - low_s) * min(1.0, (tokens - low) / (high - low))


def _holds(larger: Bucket, smaller: Bucket) -> bool:
    return larger.decodes >= smaller.decodes and larger.blocks >= smaller.blocks


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
        alone_s = self._seconds(times, decodes, 0)
        allowed_s = RATIO * alone_s + self._credit_s
        burst_s = max(BURST_S, BURST_RATIO * alone_s)
        sizes = {bucket.blocks for bucket in times.buckets}
        if times.skips:
            sizes = set(range(max(sizes) + 1))

        def fits(size: int) -> bool:
            takes_s = self._seconds(times, decodes, size)
            return takes_s <= allowed_s and (size <= 1 or takes_s <= burst_s)

        return max(filter(fits, sizes), default=0)

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
