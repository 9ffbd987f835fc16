"""The attempts of one request: how patient it is, where it was, whether it may go on elsewhere.

Knows nothing of how a replica is chosen.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from sax.errors import DeadlineExceeded, QueueFull, Retry, SaxError, meaning
from sax.watch import pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a request is carried on before its caller hears an error."""

    attempts: int = 4
    attempts_s: float = 10.0  # no new attempt after this
    ready_s: float = 3.0  # how long to wait for a first ready replica
    holds: bool = True  # or longer, to the deadline, while the admin says that one is coming
    most_held: int = 256  # requests of one model that wait for a replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one caller's requests travel."""

    address: str = ""  # this model server and no other; the admin is not asked
    fail_fast: bool = False  # no second attempt


ANY_ROUTE = Route()


class Attempts:
    """The attempts of one request: where it was, and whether it may go on elsewhere."""

    def __init__(self, patience: Patience, timeout_s: float | None) -> None:
        now = asyncio.get_running_loop().time()
        self.tried: set[str] = set()
        self.patience = patience
        self.failures = 0
        self.last: SaxError | None = None
        self.ends_at = math.inf if timeout_s is None else now + timeout_s
        self._give_up_at = now + patience.attempts_s

    @property
    def wait_s(self) -> float:
        """How long to wait for a first ready replica."""
        left_s = self.left_s
        return self.patience.ready_s if left_s is None else min(left_s, self.patience.ready_s)

    @property
    def left_s(self) -> float | None:
        """Seconds to the caller's deadline. Raises DeadlineExceeded when it passed."""
        if math.isinf(self.ends_at):
            return None
        left = self.ends_at - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before a replica took the request")
        return left

    def failed(self, address: str, error: SaxError) -> None:
        """Note a failure that another replica may not have; raise any other."""
        self.tried.add(address)
        self.failures += 1
        self.last = error
        spent = self.failures >= self.patience.attempts
        late = asyncio.get_running_loop().time() >= self._give_up_at
        if spent or late or meaning(error).retry is not Retry.LOCATOR:
            raise error

    def begin(self) -> None:
        """It was held until now: the time for attempts starts here."""
        self._give_up_at = asyncio.get_running_loop().time() + self.patience.attempts_s

    async def again(self) -> None:
        """Every replica was tried: pause and start over, but not against full queues."""
        if isinstance(self.last, QueueFull):
            raise self.last
        await asyncio.sleep(pause_s(self.failures))
        self.tried.clear()
