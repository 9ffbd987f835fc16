"""Which replica a request goes to.

Follows the ready replicas of every model that is asked for, takes the least loaded one, and
tries another when one is lost or full before it gave a token. The admin is never on the request
path: while it is away the replicas last known are used. Knows nothing of prompts and answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TypeVar

from sax.connection import Connection, Load
from sax.errors import DeadlineExceeded, NotFound, QueueFull, Retry, SaxError, meaning
from sax.follower import Follower
from sax.names import ModelId
from sax.types import GenerateRequest, TokenChunk
from sax.watch import WatchSource, pause_s

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Explain = Callable[[str], Awaitable[SaxError]]

_SWEEP_S = 30.0
_IDLE_S = 600.0  # a model nobody asked for so long is not followed any more


def choose(loads: Mapping[str, Load], tried: Collection[str]) -> str | None:
    """The least loaded address that was not tried, at random among equals."""
    fresh = {address: load for address, load in loads.items() if address not in tried}
    if not fresh:
        return None
    least = min(fresh.values())
    return random.choice([address for address, load in fresh.items() if load == least])


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a request is carried on before its caller hears an error."""

    attempts: int = 4
    attempts_s: float = 10.0  # no new attempt after this
    ready_s: float = 3.0  # how long to wait for a first ready replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How one caller's requests travel."""

    address: str = ""  # this model server and no other; the admin is not asked
    fail_fast: bool = False  # no second attempt


ANY_ROUTE = Route()


class Attempts:
    """The attempts of one request: where it was, and whether it may go on elsewhere."""

    def __init__(self, patience: Patience, timeout_s: float | None) -> None:
        now = asyncio.get_running_loop().time()
        self.tried: set[str] = set()
        self.patience = patience
        self.failures = 0
        self.last: SaxError | None = None
        self._deadline = None if timeout_s is None else now + timeout_s
        self._give_up_at = now + patience.attempts_s

    @property
    def wait_s(self) -> float:
        """How long to wait for a first ready replica."""
        left_s = self.left_s
        return self.patience.ready_s if left_s is None else min(left_s, self.patience.ready_s)

    @property
    def left_s(self) -> float | None:
        """Seconds to the caller's deadline. Raises DeadlineExceeded when it passed."""
        if self._deadline is None:
            return None
        left = self._deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before a replica took the request")
        return left

    def failed(self, address: str, error: SaxError) -> None:
        """Note a failure that another replica may not have; raise any other."""
        self.tried.add(address)
        self.failures += 1
        self.last = error
        spent = self.failures >= self.patience.attempts
        late = asyncio.get_running_loop().time() >= self._give_up_at
        if spent or late or meaning(error).retry is not Retry.LOCATOR:
            raise error

    async def again(self) -> None:
        """Every replica was tried: pause and start over, but not against full queues."""
        if isinstance(self.last, QueueFull):
            raise self.last
        await asyncio.sleep(pause_s(self.failures))
        self.tried.clear()


class Locator:
    """The replicas of a cell's models. Use it in one event loop and close it there."""

    def __init__(
        self, source: WatchSource, explain: Explain, patience: Patience | None = None
    ) -> None:
        """`explain` turns a model id without a usable replica into the error that says why."""
        self._source = source
        self._explain = explain
        self._patience = patience or Patience()
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
                attempts.failed(replica.address, error)

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
                attempts.failed(replica.address, error)

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
                attempts.failed(replica.address, error)

    async def close(self) -> None:
        """Requests under way end with Cancelled."""
        followers, self._followers = self._followers, {}
        connections, self._connections = self._connections, {}
        for follower in followers.values():
            await follower.close()
        for connection in connections.values():
            await connection.close()

    def _begin(self, model_id: str, timeout_s: float | None, route: Route) -> Attempts:
        ModelId.parse(model_id)
        patience = replace(self._patience, attempts=1) if route.fail_fast else self._patience
        return Attempts(patience, timeout_s)

    async def _replica(self, model_id: str, attempts: Attempts, route: Route) -> Connection:
        """The least loaded replica that was not tried. Raises the error that says why not."""
        await self._sweep()
        while True:
            addresses = await self._addresses(model_id, attempts, route)
            loads = {address: self._connection(address).load for address in addresses}
            if (address := choose(loads, attempts.tried)) is not None:
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
            usable = await follower.usable(attempts.wait_s)
        except SaxError as error:
            if self._followers.get(model_id) is follower:
                del self._followers[model_id]  # it has ended; the next request asks again
            if not isinstance(error, NotFound):
                raise
            usable = frozenset[str]()
        if not usable:
            raise await self._explain(model_id)
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
        kept = {a for each in self._followers.values() for a in each.watched.usable}
        unused = [
            address
            for address, each in self._connections.items()
            if address not in kept and not each.outstanding
        ]
        for connection in [self._connections.pop(address) for address in unused]:
            await connection.close()
