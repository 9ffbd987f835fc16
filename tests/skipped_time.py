"""Time that a test skips instead of waiting, where sockets are real and a VirtualLoop cannot be."""

from __future__ import annotations

import asyncio


def skip(seconds: float) -> None:
    """Put the running loop's clock forward: its timers up to then are due now."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]
