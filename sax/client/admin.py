"""gRPC client for a cell's admin server: deadlines, and retries where they are safe."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message

from sax import config
from sax.client.location import find_admin
from sax.client.watch import pause_s
from sax.errors import AdminUnavailable, DeadlineExceeded, NotLeading, SaxError
from sax.proto import admin_pb2, cell_pb2
from sax.wire import rpc


class AdminChoice:
    """Picks an admin address; calls `find` each time because an admin may move."""

    def __init__(self, find: Callable[[], Awaitable[str]]) -> None:
        self._find = find
        self._turn = 0
        self._hint = ""  # the leader, according to another admin

    async def ask(self) -> str:
        """Return the address to call now. Raises what `find` raises."""
        if self._hint:
            return self._hint
        known = await self.known()
        return known[self._turn % len(known)]

    async def known(self) -> list[str]:
        return (await self._find()).split(",")

    def lost(self) -> None:
        """Record that the current admin did not answer."""
        self._turn += not self._hint
        self._hint = ""

    def refused(self, error: NotLeading) -> None:
        """Record that the current admin is not the leader."""
        hint = error.param or ""
        if hint and hint != self._hint:
            self._hint = hint
        else:
            self.lost()


Reply = TypeVar("Reply", bound=Message)

DEADLINE_S = 10.0
_DEMAND_S = 3.0  # the next report follows a second later
_POLL_S = 60.0  # length of one long poll
_ATTEMPTS = 4
_CONNECT_S = 1.0  # per admin server, before the next one is tried
_LONGEST_PAUSE_S = 1.0  # so that a new leader is found within seconds


class Admin:
    """Calls one cell's admin server. Use and close it in one event loop."""

    def __init__(self, address: str | None = None) -> None:
        """`address`: comma-separated host:port. Without it `sax.client.location` finds the admin,
        again after each loss of connection."""
        given = address and config.check_addresses(address, "admin")
        self._given = given or ""
        self._choice = AdminChoice(self._find)
        self._address = ""
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def change(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """Call a method that changes state, once, on the leader. Raises SaxError.

        It is not retried, because a lost response may mean that the change was made. `method`
        belongs to the Admin service unless it names another: "Cell/Rollback".
        """
        return await self._attempt(method, request, reply, timeout_s, once=True)

    async def read(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """Call a read-only method, with a few attempts within one deadline. Raises SaxError."""
        return await self._attempt(method, request, reply, timeout_s, once=False)

    async def watch_loc(self, request: admin_pb2.WatchLocRequest) -> admin_pb2.WatchLocResponse:
        """Long-poll once. Raises SaxError; DeadlineExceeded when nothing changed."""
        return await self.read("WatchLoc", request, admin_pb2.WatchLocResponse, _POLL_S)

    async def demand(self, request: cell_pb2.DemandRequest) -> cell_pb2.DemandResponse:
        """Report once how many requests wait for a replica.

        Raises SaxError; UnsupportedParameter if the admin predates demand reports.
        """
        deadline = asyncio.get_running_loop().time() + _DEMAND_S
        return await self._call("Cell/Demand", request, cell_pb2.DemandResponse, deadline)

    async def close(self) -> None:
        """Close the channels; calls in progress fail."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def _attempt(
        self,
        method: str,
        request: Message,
        reply: type[Reply],
        timeout_s: float | None,
        *,
        once: bool,
    ) -> Reply:
        deadline = asyncio.get_running_loop().time() + (timeout_s or DEADLINE_S)
        failures = 0
        for attempt in itertools.count(1):
            if once:
                await self._reach(deadline)
            try:
                return await self._call(method, request, reply, deadline)
            except NotLeading as exc:
                await _pause(attempt, deadline, exc)  # not a failure: it did nothing
            except (AdminUnavailable, DeadlineExceeded) as exc:
                # The connection to a hung or vanished admin stays open for a long time.
                self._choice.lost()
                failures += 1
                if once or failures >= _ATTEMPTS or isinstance(exc, DeadlineExceeded):
                    raise
                await _pause(attempt, deadline, exc)
        raise AssertionError("not reached")

    async def _call(
        self, method: str, request: Message, reply: type[Reply], deadline: float
    ) -> Reply:
        channel = await self._open()
        try:
            return await rpc.call(
                channel,
                f"/sax.{method}" if "/" in method else f"/sax.Admin/{method}",
                request,
                reply,
                peer=f"the admin server at {self._address}",
                timeout_s=deadline - asyncio.get_running_loop().time(),
                unavailable=AdminUnavailable,
            )
        except NotLeading as exc:
            self._choice.refused(exc)
            raise

    async def _reach(self, deadline: float) -> None:
        """Connect before sending: only a request that was never sent may go to another admin."""
        known = await self._choice.known()
        if len(known) == 1:
            return
        left_s = deadline - asyncio.get_running_loop().time()
        for _ in known:
            try:
                async with asyncio.timeout(min(_CONNECT_S, left_s)):
                    return await (await self._open()).channel_ready()
            except TimeoutError:
                self._choice.lost()

    async def _find(self) -> str:
        return self._given or await find_admin()

    async def _open(self) -> grpc.aio.Channel:
        self._address = await self._choice.ask()
        if self._address not in self._channels:
            self._channels[self._address] = rpc.open_channel(self._address)
        return self._channels[self._address]


async def _pause(attempt: int, deadline: float, error: SaxError) -> None:
    """Sleep before the next attempt; raise `error` if that would pass the deadline."""
    pause = pause_s(attempt, _LONGEST_PAUSE_S)
    if asyncio.get_running_loop().time() + pause >= deadline:
        raise error
    await asyncio.sleep(pause)
