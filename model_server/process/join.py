"""Keeps this server joined to its admin server: at start, every few seconds after, and until it
leaves.

Server info and the admin's address come from callables, because both may change.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

import grpc.aio

from sax.client.admin import AdminChoice
from sax.errors import AdminUnavailable, DeadlineExceeded, NotLeading, SaxError
from sax.proto import admin_pb2
from sax.types import ServerInfo
from sax.wire import rpc
from sax.wire.servers import encode_join

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
_FIRST_RETRY_S = 0.1
_TIMEOUT_S = 5.0
_LEAVE_S = 1.0  # a shutdown does not wait longer for an admin


class Joiner:
    """Heartbeat of one model server."""

    def __init__(
        self,
        admin: Callable[[], Awaitable[str]],
        info: Callable[[], ServerInfo],
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._choice = AdminChoice(admin)
        self._info = info
        self._period_s = period_s
        self._joined: bool | None = None  # None: not tried yet
        self._joined_at_s: float | None = None
        self._asked = False  # the admin may have heard of this server, answered or not

    @property
    def joined_for_s(self) -> float | None:
        """Seconds since the first join, even if the admin is away later. Thread-safe."""
        return None if self._joined_at_s is None else time.monotonic() - self._joined_at_s

    async def run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                address = await self._choice.ask()
                channel = rpc.open_channel(address)
                try:
                    await self._join_while_it_lasts(channel, address)
                finally:
                    await channel.close()
            except SaxError as error:
                self._note(error)
                if self._joined:
                    retry_s = _FIRST_RETRY_S
                self._log_loss(error.text)
            except Exception as exc:  # e.g. an unreadable location file: the heartbeat must go on
                logger.debug("joining failed", exc_info=exc)
                self._log_loss(f"{type(exc).__name__}: {exc}")
            # Jitter: servers that lost the same admin must not all come back at once.
            await asyncio.sleep(random.uniform(retry_s / 2, retry_s))
            retry_s = min(2 * retry_s, self._period_s)

    async def leave(self) -> None:
        """Tell the admin that this server shuts down, so that clients stop choosing it now.

        Call it once `run` has ended. If the admin cannot be told, GetStatus or silence will.
        """
        if not self._asked:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                address = await self._choice.ask()
                channel = rpc.open_channel(address)
                try:
                    await self._call(channel, address, encode_join(self._info(), leaving=True))
                finally:
                    await channel.close()
        except Exception as exc:  # nothing may keep the process from draining
            logger.info("the admin server was not told of the shutdown: %s", exc)

    async def _call(
        self, channel: grpc.aio.Channel, address: str, request: admin_pb2.JoinRequest
    ) -> None:
        await rpc.call(
            channel,
            "/sax.Admin/Join",
            request,
            admin_pb2.JoinResponse,
            peer=f"the admin server at {address}",
            timeout_s=_TIMEOUT_S,
            unavailable=AdminUnavailable,
        )

    async def _join_while_it_lasts(self, channel: grpc.aio.Channel, address: str) -> None:
        while True:
            request = encode_join(self._info())
            self._asked = True
            await self._call(channel, address, request)
            if not self._joined:
                logger.info("joined the admin server at %s", address)
            self._joined = True
            if self._joined_at_s is None:
                self._joined_at_s = time.monotonic()
            await asyncio.sleep(self._period_s * random.uniform(0.8, 1.0))

    def _note(self, error: SaxError) -> None:
        """Choose the admin to ask next: the leader, or another one if this one is away."""
        if isinstance(error, NotLeading):
            self._choice.refused(error)
        elif isinstance(error, AdminUnavailable | DeadlineExceeded):
            self._choice.lost()

    def _log_loss(self, reason: str) -> None:
        """Log once when the admin is lost or not there yet, not per attempt."""
        if self._joined is not False:
            logger.warning("not joined to the admin server, retrying: %s", reason)
        self._joined = False
