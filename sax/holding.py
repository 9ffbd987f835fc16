"""Requests held for want of a replica: counted, told to the admin, and bounded.

One room for each model that has such requests. As long as anyone is in it the admin hears about
once a second how many they are, and says whether a replica is coming. Knows nothing of replicas,
nor of how a request learns that one has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

from sax.errors import QueueFull, SaxError, UnsupportedParameter
from sax.proto import cell_pb2

logger = logging.getLogger(__name__)

_TELL_S = 1.0
_TRUSTED_S = 10.0  # an admin that is away for so long is believed what it said last
_RETRY_AFTER_S = 2.0


class DemandSource(Protocol):
    """Who is told."""

    async def demand(self, request: cell_pb2.DemandRequest) -> cell_pb2.DemandResponse:
        """Say how many requests wait. Raises SaxError; UnsupportedParameter if nobody listens."""
        ...


class Room:
    """The held requests of one model."""

    def __init__(
        self,
        source: DemandSource,
        model_id: str,
        caller: str,
        most: int,
        on_empty: Callable[[], object],
    ) -> None:
        self._source = source
        self._model_id = model_id
        self._caller = caller
        self._most = most
        self._on_empty = on_empty
        self._count = 0
        self._told_at = float("-inf")
        self._starting = False
        self._task: asyncio.Task[None] | None = None
        self.reason = ""  # of the admin's last answer

    @property
    def starting(self) -> bool:
        """Has the admin said of late that a replica is coming?"""
        return self._starting and self._fresh

    @property
    def refusal(self) -> str:
        """Why none is coming, as the admin said of late; "" if it did not say."""
        return self.reason if self._fresh and not self._starting else ""

    @property
    def _fresh(self) -> bool:
        return asyncio.get_running_loop().time() - self._told_at < _TRUSTED_S

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """One request is in the room. Raises QueueFull."""
        if self._count >= self._most:
            raise QueueFull(
                f"{self._count} requests wait already for a replica of {self._model_id}, which is "
                f"all that are held here; send it again in {_RETRY_AFTER_S:g} s",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._count += 1
        if self._task is None:
            self._task = asyncio.create_task(self._report(), name=f"demand {self._model_id}")
        try:
            yield
        finally:
            self._count -= 1

    async def close(self) -> None:
        """Tell nobody any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _report(self) -> None:
        """Tell the admin until the room is empty, and that it is."""
        listens, told = True, 1
        try:
            while told or self._count:
                told = self._count
                listens = listens and await self._tell(told)
                if told:
                    await asyncio.sleep(_TELL_S)
        finally:
            self._task = None
            self._on_empty()

    async def _tell(self, count: int) -> bool:
        """Tell once; False if there is nobody to tell."""
        request = cell_pb2.DemandRequest(
            model_id=self._model_id, waiting=count, caller=self._caller
        )
        try:
            answer = await self._source.demand(request)
        except UnsupportedParameter:
            return False  # an admin from before there was scaling
        except SaxError as error:
            logger.info("%d requests are held for %s: %s", count, self._model_id, error)
            return True
        self._starting, self.reason = answer.starting, answer.reason
        self._told_at = asyncio.get_running_loop().time()
        return True


class Holding:
    """The rooms of one client. Use it in one event loop and close it there."""

    def __init__(self, source: DemandSource, caller: str, most: int) -> None:
        self._source = source
        self._caller = caller
        self._most = most
        self._rooms: dict[str, Room] = {}

    def room(self, model_id: str) -> Room:
        """The room of a model."""
        if model_id not in self._rooms:
            self._rooms[model_id] = Room(
                self._source,
                model_id,
                self._caller,
                self._most,
                lambda: self._rooms.pop(model_id, None),
            )
        return self._rooms[model_id]

    async def close(self) -> None:
        """Whoever is held finds out elsewhere."""
        for room in list(self._rooms.values()):
            await room.close()
