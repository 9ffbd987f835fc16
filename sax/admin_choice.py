"""Chooses which of a cell's admin servers to call: one leads, the others redirect or are down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sax.errors import NotLeading


class AdminChoice:
    """Picks an admin address; calls `find` each time because an admin may move."""

    def __init__(self, find: Callable[[], Awaitable[str]]) -> None:
        self._find = find
        self._turn = 0
        self._hint = ""  # the leader, according to another admin

    async def ask(self) -> str:
        """Return the address to call now. Raises what `find` raises."""
        if self._hint:
            return self._hint
        known = await self.known()
        return known[self._turn % len(known)]

    async def known(self) -> list[str]:
        return (await self._find()).split(",")

    def lost(self) -> None:
        """Record that the current admin did not answer."""
        self._turn += not self._hint
        self._hint = ""

    def refused(self, error: NotLeading) -> None:
        """Record that the current admin is not the leader."""
        hint = error.param or ""
        if hint and hint != self._hint:
            self._hint = hint
        else:
            self.lost()
