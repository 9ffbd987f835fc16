"""Pages on their way between FakeRunners: numbers, kept by key in one dictionary.

The dictionary is the network; each server has its own FakeTraffic on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model_server.disaggregation.handed_pages import PageCount
from sax.errors import Internal, ReplicaLost


class MovedRows(NamedTuple):
    """What is in a prompt's pages."""

    rows: np.ndarray  # i64[pages, G]
    long: bool = False  # its keys are rotated by the factors for more than the short context
    window_rows: np.ndarray | None = None  # likewise, of the window pages that the next query sees
    states: tuple[tuple[int, int] | None, ...] = ()  # of these window pages, as in FakeStates


class FakeTraffic:
    """What KvTransfers is to a real runner."""

    gives = True
    takes = True

    def __init__(self, network: dict[int, MovedRows] | None = None, *, room: int = 10_000) -> None:
        self.network = {} if network is None else network
        self.here: dict[int, MovedRows | None] = {}  # reserved, and fetched
        self.offered: set[int] = set()
        self.closed = False
        self._room = room

    # What a runner calls

    def offer(self, key: int, rows: MovedRows) -> None:
        assert key not in self.network, "a key is used once"
        self.network[key] = rows
        self.offered.add(key)

    def take(self, key: int) -> MovedRows:
        rows = self.here.pop(key, None)
        if rows is None:
            raise Internal("a step takes in pages that were not fetched")
        return rows

    def drop(self, key: int) -> None:
        self.here.pop(key, None)
        if key in self.offered:
            self.offered.remove(key)
            self.network.pop(key, None)

    def close(self) -> None:
        for key in [*self.here, *self.offered]:
            self.drop(key)
        self.closed = True

    # What the servers call

    def addresses(self) -> Sequence[str]:
        return ("fake",)

    def reserve(self, key: int, count: PageCount) -> bool:
        if len(self.here) >= self._room:
            return False
        self.here[key] = None
        return True

    def fetch(self, key: int, addresses: Sequence[str], deadline_s: float) -> None:
        rows = self.network.get(key)
        if rows is None:
            raise ReplicaLost("nobody offers that")
        if key in self.here:
            self.here[key] = rows
