"""Waits in tests, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_STEP_S = 0.005


async def until(true: Callable[[], bool], within_s: float = 60.0) -> None:
    """Return once it is true. Raises AssertionError after a time."""
    for _ in range(round(within_s / _STEP_S)):
        if true():
            return
        await asyncio.sleep(_STEP_S)
    raise AssertionError(f"not true within {within_s:g} s")
