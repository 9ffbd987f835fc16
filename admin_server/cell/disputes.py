"""Model servers that obey a later term than this leader's: is it true, or did somebody lie to them?

The log decides. If it shows a later leader, this one steps down; so it does if the log cannot be
read. If not, the leader keeps the lead, reports the server, and disputes the term there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from admin_server.events import CellEvents
from sax.errors import NotLeading, SaxError

_log = logging.getLogger(__name__)
_SHOWN_S = 300.0  # a warning in health


class Disputing(Protocol):
    async def dispute(self, address: str, term: int) -> None:
        """Make a server obey us instead of the leader of this term. Raises SaxError."""
        ...


class Disputes:
    """Lives on the event loop.

    `leads` reads the log; it returns whether this server still leads, or raises SaxError.
    """

    def __init__(
        self,
        modelets: Disputing,
        leads: Callable[[], Awaitable[bool]],
        step_down: Callable[[], None],
        clock: Callable[[], float],
        events: CellEvents,
    ) -> None:
        self._modelets = modelets
        self._leads = leads
        self._step_down = step_down
        self._clock = clock
        self._events = events
        self._under_way: dict[str, asyncio.Task[None]] = {}  # by address
        self._told: dict[str, tuple[float, str]] = {}  # by address: when, and the warning
        self.count = 0  # since the start

    def refused(self, address: str, refusal: NotLeading) -> None:
        """A server refused this leader for an older term than one it has seen."""
        if address not in self._under_way:
            task = asyncio.create_task(self._settle(address, refusal))
            self._under_way[address] = task
            task.add_done_callback(lambda _: self._under_way.pop(address, None))

    def warnings(self) -> list[str]:
        now = self._clock()
        self._told = {a: told for a, told in self._told.items() if now - told[0] < _SHOWN_S}
        return [text for _, (_, text) in sorted(self._told.items())]

    async def close(self) -> None:
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _settle(self, address: str, refusal: NotLeading) -> None:
        try:
            leads = await self._leads()
        except SaxError as exc:
            _log.error("%s; the log cannot tell (%s), so it does", refusal.text, exc.text)
            return self._step_down()
        if not leads:
            _log.error("%s", refusal.text)
            return
        self._report(address, refusal.param or "")
        if refusal.param and refusal.param.isdigit():
            try:
                await self._modelets.dispute(address, int(refusal.param))
            except SaxError as exc:  # the next refusal tries again
                _log.warning("%s did not take the dispute: %s", address, exc.text)

    def _report(self, address: str, term: str) -> None:
        self.count += 1
        text = (
            f"somebody told the model server {address} of a leader of term {term or 'unknown'}, "
            "which is not in the log of this cell; this admin server goes on leading: find out who "
            "may call that server (--admin_acl)"
        )
        if address not in self._told:
            _log.error("%s", text)
            self._events.note("disputed", text, server=address)
        self._told[address] = (self._clock(), text)
