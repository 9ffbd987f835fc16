"""TokenBucket: a value that gains so many units a minute and holds at most that many.

So within any time T it gives at most T / 60 times its rate and one bucketful. The level may become
negative: what a request costs in tokens is known only when it has ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class TokenBucket:
    per_minute: int
    level: float
    at_s: float  # when it had this level

    @classmethod
    def full(cls, per_minute: int, now_s: float) -> TokenBucket:
        return cls(per_minute, float(per_minute), now_s)

    def at(self, now_s: float) -> TokenBucket:
        """Return the bucket as it is now. A clock that goes back adds nothing."""
        if now_s <= self.at_s:
            return self
        gained = (now_s - self.at_s) * self.per_minute / _MINUTE_S
        return TokenBucket(self.per_minute, min(self.per_minute, self.level + gained), now_s)

    def less(self, units: float) -> TokenBucket:
        return replace(self, level=self.level - units)

    def resized(self, per_minute: int) -> TokenBucket:
        """Return a bucket of another rate: what was used of this one stays used."""
        if per_minute == self.per_minute:
            return self
        used = self.per_minute - self.level
        return TokenBucket(per_minute, per_minute - used, self.at_s)

    def wait_s(self, level: float) -> float:
        """Return the seconds until it has this level, 0 if it has."""
        return max(0.0, level - self.level) * _MINUTE_S / self.per_minute

    @property
    def full_in_s(self) -> float:
        return self.wait_s(self.per_minute)

    @property
    def remaining(self) -> int:
        """Return whole units that are left."""
        return max(0, int(self.level))
