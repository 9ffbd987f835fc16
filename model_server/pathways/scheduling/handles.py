"""Handles of one client: where each array, future and program of it is.

Every session has its own table, and workers keep values by session as well, so no client can name
another's handles. Clients choose handles, or the worker counts them up from a number that the
dispatcher gives to each request: `first_made`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ALWAYS = -1  # epoch of programs, which are compiled again when their island returns
_MADE = 1 << 62  # clients count from 1
_PER_REQUEST = 1 << 20


class Fault(NamedTuple):
    """An error as a value: it stands for an array that could not be made, or is lost."""

    code: int  # of absl and gRPC
    text: str


class IslandIncarnation(NamedTuple):
    """An island between its start and its loss."""

    island: int
    epoch: int  # counts the incarnations of the island from 1


class Parts(NamedTuple):
    """A future of a request that several islands answer: done when these are, by island."""

    handles: tuple[tuple[int, tuple[int, ...]], ...]


INVALID, NOT_FOUND, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 3, 5, 12, 13, 14, 15
CANCELLED, EXHAUSTED = 1, 8

Home = IslandIncarnation | Fault | Parts


def first_made(request: int) -> int:
    """Return the first handle for the worker to give out in its answer to a session's request.

    request: counted per session from 0.
    """
    return _MADE + request * _PER_REQUEST


class HandleTable:
    """Homes of one session's handles."""

    def __init__(self) -> None:
        self._homes: dict[int, Home] = {}
        self._requests = 0

    def __len__(self) -> int:
        return len(self._homes)

    def next_made(self) -> int:
        """Return the first of the handles of one more request."""
        self._requests += 1
        return first_made(self._requests - 1)

    def note(self, handles: Iterable[int], home: Home) -> None:
        """Set the home of new handles."""
        for handle in handles:
            self._homes[handle] = home

    def drop(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self._homes.pop(handle, None)

    def home(self, handle: int) -> Home:
        """Return a handle's home: NOT_FOUND as a Fault for a handle that this session lacks."""
        found = self._homes.get(handle)
        if found is not None:
            return found
        text = f"this session has nothing under the handle {handle}: it never had, or gave it up"
        return Fault(NOT_FOUND, text)

    def homes(self, handles: Iterable[int]) -> set[Home | None]:
        """Return the distinct homes of many handles; None stands for handles without one."""
        return set(map(self._homes.get, handles))
