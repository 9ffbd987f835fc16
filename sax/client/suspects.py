"""Lets requests that were at a replica when it died go on a few at a time.

One of them may be what killed it. The next death then names it, and costs the others nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from sax.client.attempts import Attempts

_ONE_BY_ONE = 3
_MOST = 64  # at once, of one client


class Suspects:
    """The last that came goes on first: what ends a server mostly does so at once. Three go on one
    by one, then more with each that gets an answer; again one by one after a death.

    Use in one event loop.
    """

    def __init__(self) -> None:
        self._proved = 0  # harmless ones in a row
        self._inside = 0
        self._waiting: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def turn(self, attempts: Attempts) -> AsyncGenerator[Callable[[], None] | None, None]:
        """Wait for a turn, unless no replica died with the request; yield what to call once it has
        had a part of its answer. Raises DeadlineExceeded."""
        if not attempts.deaths:
            yield None
            return
        await self._enter(attempts)
        left = False

        def leave(harmless: bool) -> None:
            nonlocal left
            if not left:
                left = True
                self._leave(harmless)

        try:
            yield lambda: leave(True)
        finally:
            leave(False)

    async def _enter(self, attempts: Attempts) -> None:
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        loop.call_soon(self._let_in)  # after all that end with the same server have come
        try:
            async with asyncio.timeout(attempts.left_s):
                await mine
        except TimeoutError:
            self._give_up(mine)
            assert attempts.left_s is not None, "it raises: the time is over"
        except BaseException:
            self._give_up(mine)
            raise
        attempts.begin()

    def _give_up(self, mine: asyncio.Future[None]) -> None:
        if mine in self._waiting:
            self._waiting.remove(mine)
        elif not mine.cancelled():
            self._leave(harmless=True)

    def _leave(self, harmless: bool) -> None:
        self._inside -= 1
        self._proved = self._proved + 1 if harmless else 0
        self._let_in()
        if not self._inside:
            self._proved = 0

    def _let_in(self) -> None:
        room = min(_MOST, 1 << max(0, self._proved - _ONE_BY_ONE + 1))
        while self._waiting and self._inside < room:
            if not (last := self._waiting.pop()).done():  # else it has just given up
                self._inside += 1
                last.set_result(None)
