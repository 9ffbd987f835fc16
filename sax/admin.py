"""The admin server as its clients call it: deadlines, and retries where they are safe.

Knows messages, not what operators mean by them (see `sax.client`).
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message

from sax import config, rpc
from sax.admin_choice import AdminChoice
from sax.errors import AdminUnavailable, DeadlineExceeded, NotLeading, SaxError
from sax.location import find_admin
from sax.proto import admin_pb2, cell_pb2
from sax.watch import pause_s

Reply = TypeVar("Reply", bound=Message)

DEADLINE_S = 10.0
_DEMAND_S = 3.0  # it is told again a second later
_POLL_S = 60.0  # a watch without news is asked again after this
_ATTEMPTS = 4
_CONNECT_S = 1.0  # to one of several admin servers, before the next one is tried
_LONGEST_PAUSE_S = 1.0  # a leader is found within seconds of the death of the one before


class Admin:
    """Calls of one cell's admin server. Use it in one event loop and close it there."""

    def __init__(self, address: str | None = None) -> None:
        """`address` may name several admin servers, with commas. Without one `sax.location` is
        asked, again whenever the admin is lost."""
        given = address and config.check_addresses(address, "admin")
        self._given = given or ""
        self._choice = AdminChoice(self._find)
        self._address = ""
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def change(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """One attempt at the leader: a lost answer may have been a done deed. Raises SaxError.

        `method` is of the Admin service, or names its own: "Cell/Rollback".
        """
        deadline = asyncio.get_running_loop().time() + (timeout_s or DEADLINE_S)
        for attempt in itertools.count(1):
            await self._reach(deadline)
            try:
                return await self._call(method, request, reply, deadline)
            except NotLeading as exc:
                await _pause(attempt, deadline, exc)
            except (AdminUnavailable, DeadlineExceeded):
                # One that hangs, or whose machine vanished, keeps its connection for long.
                self._choice.lost()
                raise
        raise AssertionError("not reached")

    async def read(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """A call that changes nothing: a few attempts within one deadline. Raises SaxError."""
        deadline = asyncio.get_running_loop().time() + (timeout_s or DEADLINE_S)
        failures = 0
        for attempt in itertools.count(1):
            try:
                return await self._call(method, request, reply, deadline)
            except NotLeading as exc:
                await _pause(attempt, deadline, exc)
            except AdminUnavailable as exc:
                self._choice.lost()
                failures += 1
                if failures >= _ATTEMPTS:
                    raise
                await _pause(attempt, deadline, exc)
            except DeadlineExceeded:
                self._choice.lost()
                raise
        raise AssertionError("not reached")

    async def watch_loc(self, request: admin_pb2.WatchLocRequest) -> admin_pb2.WatchLocResponse:
        """One long poll. Raises SaxError; DeadlineExceeded when there was no news."""
        return await self.read("WatchLoc", request, admin_pb2.WatchLocResponse, _POLL_S)

    async def demand(self, request: cell_pb2.DemandRequest) -> cell_pb2.DemandResponse:
        """Say once how many requests wait for a replica. Raises SaxError; UnsupportedParameter
        from an admin that does not listen."""
        deadline = asyncio.get_running_loop().time() + _DEMAND_S
        return await self._call("Cell/Demand", request, cell_pb2.DemandResponse, deadline)

    async def close(self) -> None:
        """Calls under way end with an error."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

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
        """Find one that can be connected to: only what was never sent may be sent elsewhere."""
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
        """The channel to whom is asked now."""
        self._address = await self._choice.ask()
        if self._address not in self._channels:
            self._channels[self._address] = rpc.open_channel(self._address)
        return self._channels[self._address]


async def _pause(attempt: int, deadline: float, error: SaxError) -> None:
    """Before the next attempt; raises the error of this one if the next would come too late."""
    pause = pause_s(attempt, _LONGEST_PAUSE_S)
    if asyncio.get_running_loop().time() + pause >= deadline:
        raise error
    await asyncio.sleep(pause)
