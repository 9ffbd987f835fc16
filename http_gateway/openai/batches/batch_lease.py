"""BatchLease: decides from a gateway's beats whether another may run its batch.

By the watcher's own clock alone: the clocks of two machines need not agree. A wrong decision costs
some lines answered in vain, and never one told twice: the batch's log is the fence.
"""

from __future__ import annotations

from dataclasses import dataclass

from http_gateway.openai.batches.records import BatchBeat


@dataclass(frozen=True, slots=True)
class BatchLease:
    """One look at a batch's newest claim, and since when it has looked like this."""

    claim: int = 0  # 0: nobody ever claimed it
    beat: BatchBeat | None = None
    since_s: float = 0.0

    def look(self, claim: int, beat: BatchBeat | None, now_s: float) -> BatchLease:
        """Return the lease after another look; any change is a sign of life."""
        if (claim, beat) == (self.claim, self.beat):
            return self
        return BatchLease(claim, beat, now_s)

    def vacant(self, now_s: float, patience_s: float) -> bool:
        if self.claim == 0 or (self.beat is not None and self.beat.resigned):
            return True
        return now_s - self.since_s >= patience_s
