"""Requests that are held because something they name is not on the island yet.

Pure. A program that is being compiled again, or an array on its way from another island, blocks its
handles. A request that touches blocked handles is held, and then blocks all that it touches: so
what is done to one handle stays in order, and the rest goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class _Held(NamedTuple):
    touches: frozenset[int]
    item: Any


class HandleHolding:
    """Blocked handles and held requests of one session on one island."""

    def __init__(self) -> None:
        self._blocks: dict[Any, frozenset[int]] = {}
        self._held: list[_Held] = []
        self._touched: set[int] = set()

    @property
    def idle(self) -> bool:
        return not self._blocks

    def block(self, key: Any, handles: Iterable[int]) -> None:
        """Block handles until the key is released."""
        self._blocks[key] = frozenset(handles)
        self._touched |= self._blocks[key]

    def holds(self, touches: Iterable[int], item: Any) -> bool:
        """Hold a request if it touches what is blocked; False: it may go."""
        if self._touched.isdisjoint(touches):
            return False
        held = _Held(frozenset(touches), item)
        self._held.append(held)
        self._touched |= held.touches
        return True

    def release(self, key: Any) -> list[Any]:
        """Return the requests that may go now, in their order."""
        self._blocks.pop(key, None)
        self._touched = set().union(*self._blocks.values())
        held, self._held = self._held, []
        return [each.item for each in held if not self.holds(each.touches, each.item)]

    def drain(self) -> list[Any]:
        """Return all that is held, in its order, and forget everything."""
        items = [each.item for each in self._held]
        self._blocks.clear()
        self._held.clear()
        self._touched.clear()
        return items
