"""Requests that are held because something they name is not on the island yet.

Pure. A program that is being compiled again, or an array on its way from another island, blocks its
handles. A request that touches blocked handles is held, and then blocks all that it touches: so
what is done to one handle stays in order, and the rest goes on. What it only reads, as a model's
weights, it blocks for those alone that change it: the steps of two lanes do not wait for each
other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class _Held(NamedTuple):
    changes: frozenset[int]
    keeps: frozenset[int]
    item: Any


class HandleHolding:
    """Blocked handles and held requests of one session on one island."""

    def __init__(self) -> None:
        self._blocks: dict[Any, frozenset[int]] = {}
        self._held: list[_Held] = []
        self._changed: set[int] = set()  # by what is held or blocks
        self._kept: set[int] = set()  # read by what is held

    @property
    def idle(self) -> bool:
        return not self._blocks

    def block(self, key: Any, handles: Iterable[int]) -> None:
        """Block handles until the key is released."""
        self._blocks[key] = frozenset(handles)
        self._changed |= self._blocks[key]

    def holds(self, changes: Iterable[int], item: Any, keeps: Iterable[int] = ()) -> bool:
        """Hold a request if it must wait; False: it may go.

        changes: handles that it makes, reuses, frees or may. keeps: those that it only reads.
        """
        asked = _Held(frozenset(changes), frozenset(keeps), item)
        if (
            self._changed.isdisjoint(asked.changes)
            and self._changed.isdisjoint(asked.keeps)
            and self._kept.isdisjoint(asked.changes)
        ):
            return False
        self._held.append(asked)
        self._changed |= asked.changes
        self._kept |= asked.keeps
        return True

    def release(self, key: Any) -> list[Any]:
        """Return the requests that may go now, in their order."""
        self._blocks.pop(key, None)
        self._changed = set().union(*self._blocks.values())
        self._kept = set()
        held, self._held = self._held, []
        return [each.item for each in held if not self.holds(each.changes, each.item, each.keeps)]

    def drain(self) -> list[Any]:
        """Return all that is held, in its order, and forget everything."""
        items = [each.item for each in self._held]
        self._blocks.clear()
        self._held.clear()
        self._changed.clear()
        self._kept.clear()
        return items
