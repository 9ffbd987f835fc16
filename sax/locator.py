"""Which replica a request goes to.

Follows the ready replicas of every model that is asked for, takes the least loaded one, and
tries another when one is lost or full before it gave a token. The admin is never on the request
path: while it is away the replicas last known are used. Knows nothing of prompts and answers.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol, TypeVar

from sax.attempts import ANY_ROUTE, Attempts, Patience, Route
from sax.connection import Connection, Load
from sax.errors import (
    DeadlineExceeded,
    NotFound,
    NotLoaded,
    ReplicaLost,
    SaxError,
)
from sax.follower import Follower
from sax.holding import DemandSource, Holding
from sax.names import ModelId
from sax.readiness import not_ready_because
from sax.types import GenerateRequest, TokenChunk
from sax.watch import WatchSource

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Explain = Callable[[str], Awaitable[SaxError]]

_GLANCE_S = 0.1  # for what is known already, or an answer away
_LOOK_S = 1.0  # how often one that is held looks whether it is still worth it
_SWEEP_S = 30.0
_IDLE_S = 600.0  # a model nobody asked for so long is not followed any more


def choose(loads: Mapping[str, Load], tried: Collection[str], preferred: str = "") -> str | None:
    """The least loaded address that was not tried, at random among equals; before all others the
    preferred one, unless its connection broke a moment ago."""
    fresh = {address: load for address, load in loads.items() if address not in tried}
    if not fresh:
        return None
    if preferred in fresh and not fresh[preferred].suspect:
        return preferred
    least = min(fresh.values())
    return random.choice([address for address, load in fresh.items() if load == least])


class Source(WatchSource, DemandSource, Protocol):
    """What the locator asks of the admin."""


class Locator:
    """The replicas of a cell's models. Use it in one event loop and close it there."""

    def __init__(
        self,
        source: Source,
        explain: Explain,
        patience: Patience | None = None,
        preferred: str = "",
    ) -> None:
        """`explain` turns a model id without a usable replica into the error that says why.
        `preferred` is the host:port of the replica to ask first, as the admin lists it."""
        self._source = source
        self._preferred = preferred
        self._explain = explain
        self._patience = patience or Patience()
        self._holding = Holding(source, uuid.uuid4().hex, self._patience.most_held)
        self._followers: dict[str, Follower] = {}
        self._connections: dict[str, Connection] = {}
        self._swept_at = float("-inf")

    def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """One answer over the token stream; closing the iterator cancels it on the server."""

        def ask(replica: Connection, left_s: float | None) -> AsyncGenerator[TokenChunk, None]:
            return replica.generate(request, left_s)

        return self.stream(request.model_id, ask, timeout_s)

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        """The same answer by callback: `sink` gets each chunk; cancelling cancels it there."""
        started = False

        def pass_on(chunk: TokenChunk) -> None:
            nonlocal started
            started = True
            sink(chunk)

        attempts = self._begin(request.model_id, timeout_s, ANY_ROUTE)
        while True:
            replica = await self._replica(request.model_id, attempts, ANY_ROUTE)
            try:
                return await replica.generate_to(request, pass_on, attempts.left_s)
            except SaxError as error:
                if started:
                    raise
                self._failed(request.model_id, replica, attempts, error)

    async def stream(
        self,
        model_id: str,
        ask: Callable[[Connection, float | None], AsyncGenerator[Item, None]],
        timeout_s: float | None = None,
        route: Route = ANY_ROUTE,
    ) -> AsyncGenerator[Item, None]:
        """What `ask` yields at a ready replica; at another one if the first fails in silence."""
        attempts = self._begin(model_id, timeout_s, route)
        while True:
            replica = await self._replica(model_id, attempts, route)
            started = False
            try:
                async with aclosing(ask(replica, attempts.left_s)) as items:
                    async for item in items:
                        started = True
                        yield item
                return
            except SaxError as error:
                # Here a stream that has started would be carried on: by asking another replica
                # with the prompt and what was yielded so far. Until then its loss is an error.
                if started:
                    raise
                self._failed(model_id, replica, attempts, error)

    async def call(
        self,
        model_id: str,
        ask: Callable[[Connection, float | None], Awaitable[Answer]],
        timeout_s: float | None = None,
        route: Route = ANY_ROUTE,
    ) -> Answer:
        """What `ask` returns at a ready replica, or at another one if the first fails."""
        attempts = self._begin(model_id, timeout_s, route)
        while True:
            replica = await self._replica(model_id, attempts, route)
            try:
                return await ask(replica, attempts.left_s)
            except SaxError as error:
                self._failed(model_id, replica, attempts, error)

    async def close(self) -> None:
        """Requests under way end with Cancelled."""
        await self._holding.close()
        followers, self._followers = self._followers, {}
        connections, self._connections = self._connections, {}
        for follower in followers.values():
            await follower.close()
        for connection in connections.values():
            await connection.close()

    def _begin(self, model_id: str, timeout_s: float | None, route: Route) -> Attempts:
        ModelId.parse(model_id)
        patience = self._patience
        if route.fail_fast:
            patience = replace(patience, attempts=1, holds=False)
        return Attempts(patience, timeout_s)

    def _failed(
        self, model_id: str, replica: Connection, attempts: Attempts, error: SaxError
    ) -> None:
        """Remember what a failed attempt tells of its replica; raise if it was the last one."""
        follower = self._followers.get(model_id)
        if follower is not None and isinstance(error, NotLoaded | ReplicaLost):
            follower.doubt(replica.address)
        attempts.failed(replica.address, error)

    async def _replica(self, model_id: str, attempts: Attempts, route: Route) -> Connection:
        """The least loaded replica that was not tried. Raises the error that says why not."""
        await self._sweep()
        while True:
            addresses = await self._addresses(model_id, attempts, route)
            loads = {address: self._connection(address).load for address in addresses}
            if (address := choose(loads, attempts.tried, self._preferred)) is not None:
                return self._connection(address)
            await attempts.again()

    async def _addresses(self, model_id: str, attempts: Attempts, route: Route) -> Collection[str]:
        """Where the request may go: never empty. Waits a short while for a first replica."""
        if route.address:
            return (route.address,)
        follower = self._followers.get(model_id)
        if follower is None or follower.ended:  # what ended it may have changed since
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
        """The usable replicas; held for a first one for a short while, or for as long as the
        admin says that one is coming. Raises QueueFull, DeadlineExceeded, ModelNotReady."""
        now = asyncio.get_running_loop().time
        give_up_at = now() + attempts.wait_s
        usable = await follower.usable(min(_GLANCE_S, attempts.wait_s))
        if usable:
            return usable
        room, may_hold = self._holding.room(model_id), attempts.patience.holds
        with room.held():
            while not usable:
                coming = may_hold and room.starting
                left_s = (attempts.ends_at if coming else give_up_at) - now()
                if left_s <= 0:
                    break
                usable = await follower.usable(min(left_s, _LOOK_S))
        if not usable and may_hold and room.starting:
            raise DeadlineExceeded(
                f"the deadline passed while the request was held for a replica of {model_id}: "
                f"{room.reason}"
            )
        if not usable and room.refusal:
            # A list asked for now may show the next try instead of what went wrong.
            raise not_ready_because(model_id, room.refusal)
        attempts.begin()
        return usable

    def _connection(self, address: str) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address)
        return self._connections[address]

    async def _sweep(self) -> None:
        """Now and then, forget models nobody asks for and servers that hold none of the rest."""
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
