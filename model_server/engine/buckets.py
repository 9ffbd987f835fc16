"""The closed set of shapes that steps are padded to. Pure arithmetic, no jax."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A product with one bf16 row takes a path on XLA:CPU that is many times slower than two rows.
_FEWEST_ROWS = 2


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """One compiled shape: D decode rows beside N blocks of prompt tokens."""

    decodes: int  # D
    blocks: int  # N

    def tokens(self, block: int) -> int:
        """T, the rows of the flat token batch."""
        return self.decodes + self.blocks * block

    def __str__(self) -> str:
        return f"{self.decodes} decodes + {self.blocks} prompt blocks"


def closed_set(slots: int, prefill_blocks: Iterable[int]) -> tuple[Bucket, ...]:
    """Few decodes, then doublings up to `slots`; prompts stand beside room for every decode.

    Each bucket costs seconds of every start. Rows that prompts leave idle cost next to nothing on
    a CPU (160 rows take as long as 130), so prompts get no buckets with fewer decodes.
    """
    most = max(slots, _FEWEST_ROWS)
    doublings = [rows for rows in (2**power for power in range(3, 31)) if rows < most]
    decodes = sorted({_FEWEST_ROWS, *doublings, most})
    return (
        *(Bucket(rows, 0) for rows in decodes),
        *(Bucket(most, blocks) for blocks in sorted(prefill_blocks)),
    )


def choose(buckets: Sequence[Bucket], decodes: int, blocks: int, block: int) -> Bucket:
    """The bucket with the fewest tokens that holds the step.

    Raises ValueError if none does: the scheduler was given limits that the buckets do not cover.
    """
    fitting = [b for b in buckets if b.decodes >= decodes and b.blocks >= blocks]
    if not fitting:
        raise ValueError(f"no bucket holds {decodes} decodes and {blocks} prompt blocks")
    return min(fitting, key=lambda bucket: (bucket.tokens(block), bucket.blocks))
