"""Objects that are gone or going: their servers, while they still answer, are no candidates."""

from __future__ import annotations

from collections.abc import Iterable

from admin_server.provisioning.object_names import SET_TAG

_KEPT = 1000  # the latest; servers of older ones have long fallen silent


class RetiredObjects:
    def __init__(self) -> None:
        self._names: dict[str, None] = {}  # oldest first

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    @property
    def tags(self) -> frozenset[str]:
        """One of these is among the tags of each server of a retired object."""
        return frozenset(f"{SET_TAG}{name}" for name in self._names)

    def add(self, name: str) -> None:
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > _KEPT:
            del self._names[next(iter(self._names))]

    def discard(self, names: Iterable[str]) -> None:
        """Objects of these names are there."""
        for name in names:
            self._names.pop(name, None)
