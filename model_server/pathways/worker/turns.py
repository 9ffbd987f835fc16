"""Turns of programs on CPU devices, which compute whatever has its arguments.

Accelerators compute programs one after another, in the order of their launches. Two programs of
different lanes or clients that a CPU computes side by side would both be done as late as the second
of them in turn: the islands of a pipeline would all compute at once, and then all wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jaxlib._jax import Device


class _LastProgram(NamedTuple):
    done: Any  # a ShardedToken
    results: frozenset[int]  # identities

    def precedes(self, arguments: Iterable[Any]) -> bool:
        """Tell whether these can be there only after it."""
        return not self.results.isdisjoint(map(id, arguments))

    def wait(self) -> None:
        with contextlib.suppress(Exception):  # whoever reads its results is told
            self.done.block_until_ready()


class Turns:
    """The last program of each device. Used by one thread."""

    def __init__(self) -> None:
        self._last: dict[Device, _LastProgram] = {}

    def wait(self, devices: Iterable[Device], arguments: Iterable[Any]) -> None:
        """Return when a program with these arguments can be launched on these devices.

        One that takes what the last program makes is launched at once: it waits for it anyway.
        """
        for last in {id(last): last for last in map(self._last.get, devices) if last}.values():
            if not last.precedes(arguments):
                last.wait()

    def launched(self, devices: Iterable[Device], done: Any, results: Sequence[Any]) -> None:
        """Remember a program. done: its ShardedToken."""
        self._last.update(dict.fromkeys(devices, _LastProgram(done, frozenset(map(id, results)))))
