"""Times of the compiled steps of one model, as measured at its load. Pure arithmetic, no jax."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from model_server.engine.buckets import Bucket, choose
from model_server.engine.types import Step


class StepTimes(msgspec.Struct, frozen=True):
    """Seconds per bucket, over empty sequences: long ones take somewhat longer."""

    buckets: tuple[Bucket, ...]
    seconds: tuple[float, ...]  # one per bucket
    block: int  # tokens of a prompt block

    @classmethod
    def measured(
        cls, buckets: Sequence[Bucket], seconds: Sequence[float], block: int
    ) -> StepTimes | None:
        """Return the times if there is one for each bucket; further ones are of other programs.

        A step takes no longer than a larger one: if it did, the host was busy with something else.
        """
        if len(seconds) < len(buckets):
            return None
        pairs = list(zip(buckets, seconds, strict=False))
        least = (min(took for other, took in pairs if _holds(other, each)) for each in buckets)
        return cls(tuple(buckets), tuple(least), block)

    @property
    def longest_s(self) -> float:
        return max(self.seconds)

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
        return self.seconds[self.buckets.index(self.bucket(decodes, blocks))]


def _holds(larger: Bucket, smaller: Bucket) -> bool:
    return larger.decodes >= smaller.decodes and larger.blocks >= smaller.blocks
