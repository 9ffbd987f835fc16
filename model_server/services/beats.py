"""Beats on token streams: a message every second, which tells a busy server from a dead one.

They come from the event loop that serves the streams: if it stands still, so do they.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

BEAT_S = 1.0  # sax.client.connection gives a server up after four of them


class Beating(Protocol):
    def beat(self) -> None: ...


class Beats:
    """The streams whose callers asked for beats."""

    def __init__(self) -> None:
        self._streams: set[Beating] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, stream: Beating, wanted: bool) -> None:
        """Beat on this stream, now and every second, or no longer."""
        if not wanted:
            self.discard(stream)
            return
        self._streams.add(stream)
        stream.beat()
        if self._timer is None:
            self._beat_later()

    def discard(self, stream: Beating) -> None:
        self._streams.discard(stream)

    def _beat_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._timer = None
        for stream in self._streams:
            stream.beat()
        if self._streams:
            self._beat_later()
