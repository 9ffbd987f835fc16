"""Whether the store takes our writes: noted by who writes, read by who tells of it.

A value that changes; knows nothing of stores, and of time only through the clock it is given.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from admin_server.notice import Notice

_log = logging.getLogger(__name__)


class StoreHealth:
    """The outcome of the last write. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.trouble = ""  # of the last failure; empty while writes succeed
        self.since_s: float | None = None  # of the first failure in a row
        self.failures = 0  # ever
        self.changed = Notice()  # when the store begins to fail, and when it recovers

    @property
    def failing(self) -> bool:
        """Whether a change would probably be refused now."""
        return self.since_s is not None

    def succeeded(self) -> None:
        """A write is durable."""
        if self.since_s is not None:
            _log.warning("the store works again after %.1f s", self._clock() - self.since_s)
            self.trouble, self.since_s = "", None
            self.changed.post()

    def failed(self, why: str) -> None:
        """A write failed, or nobody knows whether it landed."""
        self.failures += 1
        self.trouble = why
        if self.since_s is None:
            _log.warning("no change can be made durable: %s", why)
            self.since_s = self._clock()
            self.changed.post()
