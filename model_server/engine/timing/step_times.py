"""Times of the compiled steps of one model, as measured at its load. Pure arithmetic, no jax."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from model_server.engine.buckets import Bucket, choose
from model_server.engine.types import Step


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
