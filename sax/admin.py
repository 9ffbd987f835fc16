"""The admin server as its clients call it: deadlines, and retries where they are safe.

Knows messages, not what operators mean by them (see `sax.client`).
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import grpc.aio
from google.protobuf.message import Message

from sax import config, rpc
from sax.errors import AdminUnavailable
from sax.proto import admin_pb2
from sax.watch import pause_s

Reply = TypeVar("Reply", bound=Message)

DEADLINE_S = 10.0
_POLL_S = 60.0  # a watch without news is asked again after this
_ATTEMPTS = 4


class Admin:
    """Calls of one cell's admin server. Use it in one event loop and close it there."""

    def __init__(self, address: str | None = None) -> None:
        """Without an address `sax.config` is asked, again whenever the admin is lost."""
        self._given = address and config.check_address(address, "admin")
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._stale: list[grpc.aio.Channel] = []

    async def change(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """One attempt: a lost answer may have been a done deed. Raises SaxError.

        `method` is of the Admin service, or names its own: "Cell/Rollback".
        """
        return await self._call(method, request, reply, timeout_s or DEADLINE_S)

    async def read(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float | None = None
    ) -> Reply:
        """A call that changes nothing: a few attempts within one deadline. Raises SaxError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or DEADLINE_S)
        for attempt in range(1, _ATTEMPTS):
            try:
                return await self._call(method, request, reply, deadline - loop.time())
            except AdminUnavailable:
                pause = pause_s(attempt)
                if loop.time() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        return await self._call(method, request, reply, deadline - loop.time())

    async def watch_loc(self, request: admin_pb2.WatchLocRequest) -> admin_pb2.WatchLocResponse:
        """One long poll. Raises SaxError; DeadlineExceeded when there was no news."""
        return await self.read("WatchLoc", request, admin_pb2.WatchLocResponse, _POLL_S)

    async def close(self) -> None:
        """Calls under way end with an error."""
        channels = [*self._stale, *([self._channel] if self._channel else [])]
        self._stale, self._channel = [], None
        for channel in channels:
            await channel.close()

    async def _call(
        self, method: str, request: Message, reply: type[Reply], timeout_s: float
    ) -> Reply:
        channel = self._open()
        return await rpc.call(
            channel,
            f"/sax.{method}" if "/" in method else f"/sax.Admin/{method}",
            request,
            reply,
            peer=f"the admin server at {self._address}",
            timeout_s=timeout_s,
            unavailable=AdminUnavailable,
        )

    def _open(self) -> grpc.aio.Channel:
        """The channel to where the admin is now; a new one if it moved."""
        address = self._given or config.admin_address()
        if self._channel is None or address != self._address:
            if self._channel is not None:
                # A poll may still wait on it; its server is gone, so the poll ends by itself.
                self._stale.append(self._channel)
            self._address, self._channel = address, rpc.open_channel(address)
        return self._channel
