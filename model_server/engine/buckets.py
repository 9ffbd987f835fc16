"""The closed set of shapes that steps are padded to. Pure arithmetic, no jax."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

# On XLA:CPU a matmul with one bf16 row takes a path many times slower than with two.
_FEWEST_ROWS = 2


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """One compiled shape: D decode rows and N blocks of prompt tokens."""

    decodes: int  # D
    blocks: int  # N

    def tokens(self, block: int) -> int:
        """T, rows of the flat token batch."""
        return self.decodes + self.blocks * block

    def __str__(self) -> str:
        return f"{self.decodes} decodes + {self.blocks} prompt blocks"


def closed_set(
    slots: int,
    prefill_blocks: Iterable[int],
    *,
    skips: bool = False,
    batches: Collection[int] = (),
) -> tuple[Bucket, ...]:
    """Return decode-only buckets, doubling up to `slots`, then buckets with prompt blocks.

    Each bucket costs seconds at every start. Decode rows that prompts leave idle cost next to
    nothing on a CPU (160 rows take as long as 130), so prompt buckets always have room for every
    decode. skips: padding rows are not multiplied, so that three sizes of decodes do, and two of
    prompts. batches: sizes of decodes that were asked for, instead of doublings.
    """
    most = max(slots, _FEWEST_ROWS)
    doublings = [rows for rows in (2**power for power in range(3, 31)) if rows < most]
    some = doublings[:1] if skips else doublings
    if batches:
        some = [rows for rows in batches if _FEWEST_ROWS < rows < most]
    sizes = sorted(prefill_blocks)
    decodes = sorted({_FEWEST_ROWS, *some, most})
    return (
        *(Bucket(rows, 0) for rows in decodes),
        *(Bucket(most, size) for size in (sizes[:1] + sizes[1:][-1:] if skips else sizes)),
    )


def choose(buckets: Sequence[Bucket], decodes: int, blocks: int, block: int) -> Bucket:
    """Return the bucket with the fewest tokens that holds the step.

    Raises ValueError if none does: the scheduler's limits exceed the buckets.
    """
    fitting = [b for b in buckets if b.decodes >= decodes and b.blocks >= blocks]
    if not fitting:
        raise ValueError(f"no bucket holds {decodes} decodes and {blocks} prompt blocks")
    return min(fitting, key=lambda bucket: (bucket.tokens(block), bucket.blocks))
