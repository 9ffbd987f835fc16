"""Patience with frames that cost work and bring nothing: pings, settings, resets and the like.

Each costs a part of a budget, which grows with time and with what the peer takes of our answers,
up to a most. It does not grow while the peer does not read, so that the answers to such frames
cannot pile up either.
"""

from __future__ import annotations

from collections.abc import Callable

from model_server.pathways.http2.frames import ENHANCE_YOUR_CALM, ConnectionFault

FULL = 10_000  # of a budget: so many pings at once, or a thousand calls that are taken back
_PER_S = 1000.0
CHEAP, DEAR = 1, 10  # a frame that is passed over, and one that makes us work or answer


class Patience:
    """The budget of one connection."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: in seconds."""
        self.reading = True  # the peer takes what is written
        self._clock = clock
        self._left = float(FULL)
        self._at_s = clock()

    def spend(self, cost: float, what: str) -> None:
        """Take note of a frame. Raises ConnectionFault for a flood of them."""
        if self._left < cost:
            self._wait()
        if self._left < cost:
            raise ConnectionFault(ENHANCE_YOUR_CALM, f"a flood of {what}")
        self._left -= cost

    def earn(self, count: float) -> None:
        """Allow a peer more frames, for what it takes of our answers."""
        self._left = min(FULL, self._left + count)

    def _wait(self) -> None:
        now_s = self._clock()
        if self.reading:
            self.earn((now_s - self._at_s) * _PER_S)
        self._at_s = now_s
