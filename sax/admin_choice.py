"""Which of a cell's admin servers to ask: one leads, the others name it or are away.

Knows nothing of connections: told what came of asking, it says whom to ask next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sax.errors import NotLeading


class AdminChoice:
    """A choice among `host:port,host:port`, asked for anew each time, as an admin may move."""

    def __init__(self, find: Callable[[], Awaitable[str]]) -> None:
        self._find = find
        self._turn = 0
        self._hint = ""  # who leads, as another one said

    async def ask(self) -> str:
        """Whom to ask now. Raises what `find` raises."""
        if self._hint:
            return self._hint
        known = await self.known()
        return known[self._turn % len(known)]

    async def known(self) -> list[str]:
        """All that were given."""
        return (await self._find()).split(",")

    def lost(self) -> None:
        """It did not answer."""
        self._turn += not self._hint
        self._hint = ""

    def refused(self, error: NotLeading) -> None:
        """It answered that another one leads, or that nobody does yet."""
        hint = error.param or ""
        if hint and hint != self._hint:
            self._hint = hint
        else:
            self.lost()
