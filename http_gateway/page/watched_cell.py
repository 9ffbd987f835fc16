"""WatchedCell: the cell as its viewers see it, fetched at most once a second for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from http_gateway.cell_client import CellClient
from sax.auth.credentials import own_account, told_to_user
from sax.errors import AdminUnavailable, SaxError, UnsupportedParameter
from sax.types import Overview, Rights

_FRESH_S = 1.0
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class CellSight:
    """One look at the cell; `failure` is why there is no newer one, "" if it is fresh."""

    overview: Overview
    at_s: float  # seconds since the epoch
    failure: str = ""


class WatchedCell:
    def __init__(
        self, client: CellClient, clock: Callable[[], float] = time.time, fresh_s: float = _FRESH_S
    ) -> None:
        self._client = client
        self._clock = clock
        self._fresh_s = fresh_s
        self._seen: CellSight | None = None
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> CellSight:
        """Return the cell as it is, or as it was when its admin server last answered.

        Raises SaxError if it never answered.
        """
        if self._seen is not None and 0 <= self._clock() - self._seen.at_s < self._fresh_s:
            return self._seen
        try:
            await asyncio.shield(self._start())
        except SaxError as error:
            told = told_to_user(error)
            if self._seen is None:
                raise told from error
            return CellSight(self._seen.overview, self._seen.at_s, told.text)
        assert self._seen is not None
        return self._seen

    async def rights(self) -> Rights | None:
        """Return the changes that the caller may make; None if the admin does not tell."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._client.rights()
        except (UnsupportedParameter, AdminUnavailable, TimeoutError):
            return None

    def _start(self) -> asyncio.Task[None]:
        if self._looking is None:
            # Shared by all viewers, so it runs under the gateway's own identity.
            self._looking = asyncio.create_task(self._fetch(), context=own_account())
            self._looking.add_done_callback(_retrieve)
        return self._looking

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                self._seen = CellSight(await self._client.overview(), self._clock())
        except TimeoutError as error:
            raise AdminUnavailable(
                f"the admin server did not answer within {_TIMEOUT_S:g} s; check that it is running"
            ) from error
        finally:
            self._looking = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a look whose viewers all left, which would be logged otherwise."""
    if not task.cancelled():
        task.exception()
