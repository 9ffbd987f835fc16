"""Chooses the replica for each request.

Follows the ready replicas of every requested model, picks the one that has the request's prefix or
else the least loaded one (`sax.client.routing`), and tries another if it is lost or full. An answer
that has begun goes on at the other one after its last token. The admin is never on the request
path: while it is down, the last known replicas are used.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, TypeVar

from sax.client.attempts import ANY_ROUTE, Attempts, RetryLimits, Route, shorter
from sax.client.connection import ModelServerConnection
from sax.client.follower import Follower
from sax.client.holding import DemandSource, Holding
from sax.client.readiness import not_ready_because
from sax.client.resumable_answer import ResumableAnswer
from sax.client.routing.affinity import (
    ANYWHERE,
    Affinity,
    affinity_of,
    current_session,
    within_session,
)
from sax.client.routing.choice import RecentReplicas, choose, sides
from sax.client.suspects import Suspects
from sax.client.watch import WatchSource
from sax.errors import (
    DeadlineExceeded,
    NotFound,
    NotLoaded,
    ReplicaLost,
    SaxError,
)
from sax.names import ModelId
from sax.types import GenerateRequest, TokenChunk

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Explain = Callable[[str], Awaitable[SaxError]]

_GLANCE_S = 0.1  # enough if replicas are known, or the admin answers at once
_LOOK_S = 1.0  # how often a held request checks whether to keep waiting
_SWEEP_S = 30.0
_IDLE_S = 600.0  # a model without requests for this long is no longer followed


class AdminSource(WatchSource, DemandSource, Protocol):
    """Admin calls that the locator needs."""


class Locator:
    """Locator for a cell's models. Use and close it in one event loop."""

    def __init__(
        self,
        source: AdminSource,
        explain: Explain,
        patience: RetryLimits | None = None,
        preferred: str = "",
    ) -> None:
        """`explain` returns the error for a model id that has no usable replica. `preferred` is the
        host:port of the replica to try first, as the admin lists it."""
        self._source = source
        self._preferred = preferred
        self._explain = explain
        self._patience = patience or RetryLimits()
        self._holding = Holding(source, uuid.uuid4().hex, self._patience.most_held)
        self._followers: dict[str, Follower] = {}
        self._connections: dict[str, ModelServerConnection] = {}
        self._recent = RecentReplicas()
        self._suspects = Suspects()
        self._swept_at = float("-inf")

    async def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """Stream one answer; closing the iterator cancels it on the server.

        When its replica is lost or leaves, another one goes on after what arrived.
        """
        answer, loop = ResumableAnswer(request), asyncio.get_running_loop()
        limit_s, model_id = shorter(request.timeout_s, timeout_s), request.model_id
        attempts = self._begin(model_id, limit_s, ANY_ROUTE, answer)
        affinity = _affinity(request)
        while True:
            async with self._suspects.turn(attempts) as answer.heard:
                replica = await self._replica(model_id, attempts, ANY_ROUTE, affinity)
                chunks = replica.generate(answer.rest, attempts.left_s)
                try:
                    async with aclosing(chunks):
                        async for chunk in chunks:
                            answer.add(chunk, loop.time())
                            yield chunk
                        return
                except SaxError as error:
                    self._failed(model_id, replica, attempts, error)

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """Like `generate`, but calls `sink` with each chunk. Cancelling cancels on the server."""
        answer, loop = ResumableAnswer(request), asyncio.get_running_loop()

        def pass_on(chunk: TokenChunk) -> None:
            answer.add(chunk, loop.time())
            sink(chunk)

        async def ask(replica: ModelServerConnection, left_s: float | None) -> None:
            await replica.generate_to(answer.rest, pass_on, left_s)

        limit_s = shorter(request.timeout_s, timeout_s)
        affinity = _affinity(request)
        await self.call(request.model_id, ask, limit_s, answer=answer, affinity=affinity)

    async def stream(
        self,
        model_id: str,
        ask: Callable[[ModelServerConnection, float | None], AsyncGenerator[Item, None]],
        timeout_s: float | None = None,
        route: Route = ANY_ROUTE,
        affinity: Affinity = ANYWHERE,
    ) -> AsyncGenerator[Item, None]:
        """Yield from `ask` on a ready replica; retry on another if it fails before yielding.

        Saxml's streams, which say nothing that another replica could go on from.
        """

        async def begin(
            replica: ModelServerConnection, left_s: float | None
        ) -> tuple[list[Item], AsyncGenerator[Item, None]]:
            items = ask(replica, left_s)
            async for item in items:
                return [item], items
            return [], items

        first, rest = await self.call(model_id, begin, timeout_s, route, affinity=affinity)
        async with aclosing(rest):
            for item in first:
                yield item
            async for item in rest:
                yield item

    async def call(
        self,
        model_id: str,
        ask: Callable[[ModelServerConnection, float | None], Awaitable[Answer]],
        timeout_s: float | None = None,
        route: Route = ANY_ROUTE,
        answer: ResumableAnswer | None = None,
        affinity: Affinity = ANYWHERE,
    ) -> Answer:
        """Await `ask` on a ready replica; retry on another if it fails, with new patience each time
        that a part of the answer has arrived."""
        attempts = self._begin(model_id, timeout_s, route, answer)
        affinity = affinity if affinity.session else within_session(model_id, affinity)
        while True:
            async with self._suspects.turn(attempts) as heard:
                if answer is not None:
                    answer.heard = heard
                replica = await self._replica(model_id, attempts, route, affinity)
                try:
                    answered = await ask(replica, attempts.left_s)
                except SaxError as error:
                    self._failed(model_id, replica, attempts, error)
                else:
                    if heard is not None:
                        heard()
                    return answered

    async def close(self) -> None:
        """Close all connections; requests in progress fail with Cancelled."""
        await self._holding.close()
        followers, self._followers = self._followers, {}
        connections, self._connections = self._connections, {}
        for follower in followers.values():
            await follower.close()
        for connection in connections.values():
            await connection.close()

    def _begin(
        self,
        model_id: str,
        timeout_s: float | None,
        route: Route,
        answer: ResumableAnswer | None,
    ) -> Attempts:
        ModelId.parse(model_id)
        patience = self._patience
        if route.fail_fast:
            patience = replace(patience, attempts=1, holds=False)
        name = f"request {answer.request_id}" if answer is not None else f"a request of {model_id}"
        return Attempts(patience, timeout_s, answer, name)

    def _failed(
        self, model_id: str, replica: ModelServerConnection, attempts: Attempts, error: SaxError
    ) -> None:
        follower = self._followers.get(model_id)
        if follower is not None and isinstance(error, NotLoaded | ReplicaLost):
            follower.doubt(replica.address)
        attempts.failed(replica.address, error)

    async def _replica(
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


def _affinity(request: GenerateRequest) -> Affinity:
    if request.session or current_session():  # the prompt is not looked at
        return within_session(request.model_id, ANYWHERE, request.session)
    return affinity_of(request)
