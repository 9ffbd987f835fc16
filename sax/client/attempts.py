"""Retry budget and history of one request."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from sax.client.watch import pause_s
from sax.errors import DeadlineExceeded, QueueFull, Retry, SaxError, meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """Limits on retrying and waiting before the caller gets an error."""

    attempts: int = 4
    attempts_s: float = 10.0  # no new attempt later than this
    rounds_s: float = 2.5  # nor one at a replica that failed already: a frozen one costs seconds
    ready_s: float = 3.0  # wait for a first ready replica
    holds: bool = True  # wait to the deadline while the admin says a replica is starting
    most_held: int = 256  # requests per model waiting for a replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Routing options of one caller's requests."""

    address: str = ""  # use only this model server, without asking the admin
    fail_fast: bool = False  # no second attempt


ANY_ROUTE = Route()


def shorter(one_s: float | None, other_s: float | None) -> float | None:
    """Return the shorter of two time limits; None is no limit."""
    return min((each for each in (one_s, other_s) if each is not None), default=None)


class Attempts:
    """The attempts of one request: replicas tried, failures, and time left."""

    def __init__(self, patience: RetryLimits, timeout_s: float | None) -> None:
        now = asyncio.get_running_loop().time()
        self.tried: set[str] = set()
        self.patience = patience
        self.failures = 0
        self.last: SaxError | None = None
        self.ends_at = math.inf if timeout_s is None else now + timeout_s
        self._began_at = now

    @property
    def _spent_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_at

    @property
    def wait_s(self) -> float:
        left_s = self.left_s
        return self.patience.ready_s if left_s is None else min(left_s, self.patience.ready_s)

    @property
    def left_s(self) -> float | None:
        """Seconds to the caller's deadline, or None. Raises DeadlineExceeded when it has passed."""
        if math.isinf(self.ends_at):
            return None
        left = self.ends_at - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before a replica accepted the request")
        return left

    def failed(self, address: str, error: SaxError) -> None:
        """Record a failure that other replicas may not share; raise any other, and the last one."""
        self.tried.add(address)
        self.failures += 1
        self.last = error
        spent = self.failures >= self.patience.attempts
        late = self._spent_s >= self.patience.attempts_s
        if spent or late or meaning(error).retry is not Retry.LOCATOR:
            raise error

    def begin(self) -> None:
        """Start the time for attempts now, after the request was held for a replica."""
        self._began_at = asyncio.get_running_loop().time()

    async def again(self) -> None:
        """Pause and start over after every replica was tried. Raises the last failure if their
        queues are full or it is late."""
        if self.last is not None and (
            isinstance(self.last, QueueFull) or self._spent_s >= self.patience.rounds_s
        ):
            raise self.last
        await asyncio.sleep(pause_s(self.failures))
        self.tried.clear()
