"""Ids of sequences, which engines may share."""

from __future__ import annotations

import threading


class Ids:
    """Ids of sequences, higher and higher, for all engines that share them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1

    def take(self, count: int = 1) -> int:
        """Return the first of `count` ids that follow each other."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return first
