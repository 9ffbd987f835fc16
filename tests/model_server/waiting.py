"""Waits in tests, with a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_STEP_S = 0.005


async def until(true: Callable[[], object], within_s: float = 60.0) -> None:
    """Return once it is true. Raises AssertionError after a time."""
    for _ in range(round(within_s / _STEP_S)):
        if true():
            return
        await asyncio.sleep(_STEP_S)
    raise AssertionError(f"not true within {within_s:g} s")


def wait_until(true: Callable[[], object], within_s: float = 60.0) -> None:
    """The same for what other threads bring about."""
    for _ in range(round(within_s / _STEP_S)):
        if true():
            return
        time.sleep(_STEP_S)
    raise AssertionError(f"not true within {within_s:g} s")


async def rounds() -> None:
    """Let the loop go round often enough for closed connections to end at both ends.

    One sleep is not: after a stall it is over in the round that first reads of the close.
    """
    for _ in range(10):
        await asyncio.sleep(_STEP_S)
