"""Holds requests while no replica is ready, up to a limit, and reports demand to the admin.

Each model with such requests has one HeldQueue, which reports their number about once a second. The
admin replies whether a replica is starting.
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

_REPORT_S = 1.0
_TRUSTED_S = 10.0  # how long the admin's last answer stays valid while the admin is unreachable
_RETRY_AFTER_S = 2.0


class DemandSource(Protocol):
    """Receiver of demand reports."""

    async def demand(self, request: cell_pb2.DemandRequest) -> cell_pb2.DemandResponse:
        """Report how many requests wait. Raises SaxError; UnsupportedParameter if unsupported."""
        ...


class HeldQueue:
    """Held requests of one model."""

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
        self._answered_at = float("-inf")
        self._starting = False
        self._task: asyncio.Task[None] | None = None
        self.reason = ""  # from the admin's last answer

    @property
    def starting(self) -> bool:
        """True if the admin recently said that a replica is starting."""
        return self._starting and self._fresh

    @property
    def refusal(self) -> str:
        return self.reason if self._fresh and not self._starting else ""

    @property
    def _fresh(self) -> bool:
        return asyncio.get_running_loop().time() - self._answered_at < _TRUSTED_S

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """Hold one request while in this block. Raises QueueFull."""
        if self._count >= self._most:
            raise QueueFull(
                f"{self._count} requests are already waiting for a replica of {self._model_id}, "
                f"the most this client holds; retry in {_RETRY_AFTER_S:g} s",
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _report(self) -> None:
        """Report until no request is held, then report zero."""
        listens, reported = True, 1
        try:
            while reported or self._count:
                reported = self._count
                listens = listens and await self._report_once(reported)
                if reported:
                    await asyncio.sleep(_REPORT_S)
        finally:
            self._task = None
            self._on_empty()

    async def _report_once(self, count: int) -> bool:
        """Report once; return False if the admin does not support it."""
        request = cell_pb2.DemandRequest(
            model_id=self._model_id, waiting=count, caller=self._caller
        )
        try:
            answer = await self._source.demand(request)
        except UnsupportedParameter:
            return False  # an admin older than autoscaling
        except SaxError as error:
            logger.info("%d requests are held for %s: %s", count, self._model_id, error)
            return True
        self._starting, self.reason = answer.starting, answer.reason
        self._answered_at = asyncio.get_running_loop().time()
        return True


class Holding:
    """Held requests of one client, by model. Use and close it in one event loop."""

    def __init__(self, source: DemandSource, caller: str, most: int) -> None:
        self._source = source
        self._caller = caller
        self._most = most
        self._queues: dict[str, HeldQueue] = {}

    def queue(self, model_id: str) -> HeldQueue:
        if model_id not in self._queues:
            self._queues[model_id] = HeldQueue(
                self._source,
                model_id,
                self._caller,
                self._most,
                lambda: self._queues.pop(model_id, None),
            )
        return self._queues[model_id]

    async def close(self) -> None:
        """Close all queues. Held requests are not notified here."""
        for queue in list(self._queues.values()):
            await queue.close()
