"""Health of the store: updated by writers, read by health endpoints and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable

from admin_server.notice import Notice

_log = logging.getLogger(__name__)


class StoreHealth:
    """The outcome of the last write. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.trouble = ""  # the last failure; empty while writes succeed
        self.since_s: float | None = None  # time of the first failure in a row
        self.failures = 0  # total
        self.changed = Notice()  # posted when the store begins to fail and when it recovers

    @property
    def failing(self) -> bool:
        """True if a change would probably be refused now."""
        return self.since_s is not None

    def succeeded(self) -> None:
        if self.since_s is not None:
            _log.warning("the store works again after %.1f s", self._clock() - self.since_s)
            self.trouble, self.since_s = "", None
            self.changed.post()

    def failed(self, why: str) -> None:
        """Record a failed write, or one with unknown outcome."""
        self.failures += 1
        self.trouble = why
        if self.since_s is None:
            _log.warning("changes cannot be made durable: %s", why)
            self.since_s = self._clock()
            self.changed.post()
