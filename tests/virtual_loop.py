"""An event loop whose time is made up: nothing is waited for, and a seed always plays one story.

When nothing is ready to run, time jumps to the next timer. Nothing outside may wake such a loop, so
no sockets and no threads: whoever waits with no timer set waits for ever, and that is an error.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stuck(Exception):
    """Every task waits, and no timer is set that could wake one."""


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing; tells the loop how long it would have waited."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.skipped_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 1,000 s, so that no moment is falsy by accident."""

    def __init__(self) -> None:
        self._jumps = _JumpingSelector()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Virtual seconds."""
        return 1000.0 + self._jumps.skipped_s


def run(story: Coroutine[Any, Any, Result]) -> Result:
    """Play a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)


def now() -> float:
    """The clock of everything that is simulated."""
    return asyncio.get_running_loop().time()
