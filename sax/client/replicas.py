"""Which replica a request goes to.

Follows the ready replicas of every requested model, each in a background task, and picks the one
that has the request's prefix or else the least loaded one (`sax.client.routing`). The admin is
never on the request path: while it is down, the last known replicas are used.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import aclosing, contextmanager
from typing import Protocol

from sax.auth.credentials import own_account, told_to_user
from sax.client.attempts import Attempts, Route
from sax.client.connection import ModelServerConnection
from sax.client.operator_calls import not_ready_because
from sax.client.routing import Affinity, RecentReplicas, choose, sides
from sax.client.watch import Watched, WatchSource, follow
from sax.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    NotFound,
    QueueFull,
    SaxError,
    UnsupportedParameter,
    fresh,
)
from sax.proto import cell_pb2

# Holds requests while no replica is ready, up to a limit, and reports demand to the admin.
#
# Each model with such requests has one HeldQueue, which reports their number about once a second.
# The admin replies whether a replica is starting.

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


Explain = Callable[[str], Awaitable[SaxError]]

_GLANCE_S = 0.1  # enough if replicas are known, or the admin answers at once
_LOOK_S = 1.0  # how often a held request checks whether to keep waiting
_SWEEP_S = 30.0
_IDLE_S = 600.0  # a model without requests for this long is no longer followed


class AdminSource(WatchSource, DemandSource, Protocol):
    """Admin calls that following and holding need."""


class Follower:
    """Follows one model until closed, or until the model is gone."""

    def __init__(self, source: WatchSource, model_id: str) -> None:
        self.watched = Watched()
        self._doubted: set[str] = set()
        self._error: SaxError | None = None
        self._news = asyncio.Event()
        self._asked_at = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(
            self._follow(source, model_id), name=f"follow {model_id}", context=own_account()
        )

    @property
    def idle_s(self) -> float:
        """Seconds since `usable` was last called."""
        return asyncio.get_running_loop().time() - self._asked_at

    @property
    def ended(self) -> bool:
        """True once following stopped: the model was unpublished, or the admin never answered."""
        return self._error is not None

    @property
    def addresses(self) -> frozenset[str]:
        return self.watched.ready or self.watched.former - self._doubted

    def doubt(self, address: str) -> None:
        """Drop a lost replica that only a previous admin reported ready."""
        if address not in self.watched.ready:
            self._doubted.add(address)

    async def usable(self, wait_s: float) -> frozenset[str]:
        """Return the usable addresses, waiting up to wait_s for a first one.

        Raises NotFound if the model is not published, AdminUnavailable if the first call to the
        admin failed.
        """
        loop = asyncio.get_running_loop()
        self._asked_at = loop.time()
        while self._error is None and not self.addresses:
            left_s = self._asked_at + wait_s - loop.time()
            news = self._news
            try:
                await asyncio.wait_for(news.wait(), left_s)
            except TimeoutError:
                break
        if self._error is not None:
            raise told_to_user(fresh(self._error))
        return self.addresses

    async def close(self) -> None:
        """Stop following; waiting callers get no replica."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, source: WatchSource, model_id: str) -> None:
        error: SaxError = Cancelled("the client was closed")
        try:
            async with aclosing(follow(source, model_id)) as answers:
                async for self.watched, _ in answers:
                    self._doubted &= self.watched.former
                    self._tell()
        except SaxError as exc:
            error = exc
        except Exception:
            logger.exception("following %s failed", model_id)
            error = Internal(f"following {model_id} failed; the client's log has the details")
        finally:
            self._error = error
            self._tell()

    def _tell(self) -> None:
        """Wake all waiters; later ones wait for the next change."""
        news, self._news = self._news, asyncio.Event()
        news.set()


class Replicas:
    """The replicas of a cell's models, and connections to them. Used in one event loop."""

    def __init__(
        self, source: AdminSource, explain: Explain, most_held: int, preferred: str
    ) -> None:
        """`explain` returns the error for a model id that has no usable replica. `preferred` is the
        host:port of the replica to try first; `most_held`: requests per model that wait for one."""
        self._source = source
        self._preferred = preferred
        self._explain = explain
        self._holding = Holding(source, uuid.uuid4().hex, most_held)
        self._followers: dict[str, Follower] = {}
        self._connections: dict[str, ModelServerConnection] = {}
        self._recent = RecentReplicas()
        self._swept_at = float("-inf")

    @property
    def busy(self) -> list[ModelServerConnection]:
        """Connections whose answers requests wait for."""
        return [each for each in self._connections.values() if each.outstanding]

    async def close(self) -> None:
        """Close all connections; requests in progress fail with Cancelled."""
        await self._holding.close()
        followers, self._followers = self._followers, {}
        connections, self._connections = self._connections, {}
        for follower in followers.values():
            await follower.close()
        for connection in connections.values():
            await connection.close()

    def doubt(self, model_id: str, address: str) -> None:
        """Note that a request was lost there."""
        if (follower := self._followers.get(model_id)) is not None:
            follower.doubt(address)

    async def best(
        self, model_id: str, attempts: Attempts, route: Route, affinity: Affinity
    ) -> ModelServerConnection:
        """Return the best untried replica. Raises the error that says why there is none."""
        await self._sweep()
        while True:
            try:
                addresses = await self._addresses(model_id, attempts, route)
            except SaxError as error:
                raise attempts.told(error) from error
            for side in self._sides(model_id, addresses, attempts, affinity):
                if (address := self._chosen(side, attempts.tried, affinity)) is not None:
                    return self._connection(address)
            await attempts.again()

    def _sides(
        self, model_id: str, addresses: Collection[str], attempts: Attempts, affinity: Affinity
    ) -> tuple[Collection[str], ...]:
        """Return the replicas of the version that serves the request, then the others."""
        follower = self._followers.get(model_id)
        if follower is None or self._preferred in addresses:
            return (addresses,)
        return sides(addresses, follower.watched.canary, affinity.session, attempts.drawn)

    def _chosen(
        self, addresses: Collection[str], tried: Collection[str], affinity: Affinity
    ) -> str | None:
        now = asyncio.get_running_loop().time()
        loads = {address: self._connection(address).load for address in addresses}
        address = choose(loads, tried, self._preferred, self._recent.wish(affinity, loads, now))
        if address is not None:
            self._recent.remember(affinity, address, now)
        return address

    async def _addresses(self, model_id: str, attempts: Attempts, route: Route) -> Collection[str]:
        """Return the candidate addresses, never empty; waits briefly for a first replica."""
        if route.address:
            return (route.address,)
        follower = self._followers.get(model_id)
        if follower is None or follower.ended:  # the cause may be gone by now
            follower = self._followers[model_id] = Follower(self._source, model_id)
        try:
            usable = await self._usable(model_id, follower, attempts)
        except SaxError as error:
            if self._followers.get(model_id) is follower:
                del self._followers[model_id]  # it has ended; the next request asks again
            if not isinstance(error, NotFound):
                raise
            usable = frozenset[str]()
        if not usable:
            raise await self._explain(model_id)
        return usable

    async def _usable(
        self, model_id: str, follower: Follower, attempts: Attempts
    ) -> frozenset[str]:
        """Return the usable addresses. Holds the request for a first one: briefly, or for as long
        as the admin says that one is starting. Raises QueueFull, DeadlineExceeded, ModelNotReady.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + attempts.wait_s
        usable = await follower.usable(min(_GLANCE_S, attempts.wait_s))
        if usable:
            return usable
        queue, may_hold = self._holding.queue(model_id), attempts.patience.holds
        with queue.held():
            while not usable:
                coming = may_hold and queue.starting
                left_s = (attempts.ends_at if coming else give_up_at) - loop.time()
                if left_s <= 0:
                    break
                usable = await follower.usable(min(left_s, _LOOK_S))
        if not usable and may_hold and queue.starting:
            raise DeadlineExceeded(
                f"the deadline passed while the request waited for a replica of {model_id}: "
                f"{queue.reason}"
            )
        if not usable and queue.refusal:
            # Listing the model now may show the next attempt instead of what went wrong.
            raise not_ready_because(model_id, queue.refusal)
        attempts.begin()
        return usable

    def _connection(self, address: str) -> ModelServerConnection:
        if address not in self._connections:
            self._connections[address] = ModelServerConnection(address)
        return self._connections[address]

    async def _sweep(self) -> None:
        """Periodically drop idle followers, and connections that no follower needs."""
        now = asyncio.get_running_loop().time()
        if now - self._swept_at < _SWEEP_S:
            return
        self._swept_at = now
        idle = [key for key, each in self._followers.items() if each.idle_s > _IDLE_S]
        for follower in [self._followers.pop(key) for key in idle]:
            await follower.close()
        kept = {a for each in self._followers.values() for a in each.addresses}
        unused = [
            address
            for address, each in self._connections.items()
            if address not in kept and not each.outstanding
        ]
        for connection in [self._connections.pop(address) for address in unused]:
            await connection.close()
