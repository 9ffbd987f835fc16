"""Threads that encode long texts, so that none delays the event loop or another user's text.

The `tokenizers` library lets other threads run while it encodes. Short texts are encoded on the
event loop in well under a millisecond, and never wait behind long ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from sax.errors import QueueFull

T = TypeVar("T")

INLINE = 2000  # characters
_MEDIUM = 50_000  # characters: some tens of milliseconds
_MOST_WAITING = 64 << 20  # characters of all texts that wait or are being encoded


class Waits(Protocol):
    @property
    def waits(self) -> bool:
        """True if texts are encoded in another process, so that encoding blocks."""
        ...


def to_encode(characters: int, tokenizer: Waits) -> int:
    """Return how many characters `run` shall count: the event loop waits for no other process."""
    return characters + INLINE + 1 if tokenizer.waits else characters


class EncodingThreads:
    """Two small pools: what takes seconds does not delay what takes milliseconds."""

    def __init__(self) -> None:
        self._medium = ThreadPoolExecutor(2, "encode")
        self._long = ThreadPoolExecutor(1, "encode-long")
        self._waiting = 0

    async def run(self, characters: int, work: Callable[[], T]) -> T:
        """Do the work of encoding so many characters: at once if few, else on a thread.

        A caller that is cancelled does not wait for the thread. Raises QueueFull.
        """
        if characters <= INLINE:
            return work()
        if self._waiting + characters > _MOST_WAITING:
            raise QueueFull(f"{self._waiting} characters are waiting to be encoded; retry")
        pool = self._medium if characters <= _MEDIUM else self._long
        self._waiting += characters
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        finally:
            self._waiting -= characters

    def close(self) -> None:
        for pool in (self._medium, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
