"""Keeps this server joined to its admin server: at start, every few seconds after, and until it
leaves.

Server info and the admin's address come from callables, because both may change.

An admin server that runs with this one (--admin_port) is a child process, started through
`sax.cli.local.leash`, whose standard input is a pipe from this process: when the pipe closes, even
by a kill -9, the admin server drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

import grpc.aio

from model_server.config import ModelServerConfig
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
_LONGEST_PAUSE_S = 30.0
_GOOD_LIFE_S = 60.0  # after which its next end is not counted with those before
_STOP_S = 10.0
_STATUS_OFFSET = 2  # as 10002 stands to 10000


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


def admin_command(config: ModelServerConfig) -> list[str]:
    """Return the arguments of Python that start the admin server of `--admin_port`. Pure."""
    status = config.admin_port + _STATUS_OFFSET
    security = config.security
    flags = {
        "sax_cell": config.sax_cell,
        "host": config.host,
        "port": str(config.admin_port),
        "status_port": str(status if status < 65536 else -1),
        "advertise": config.advertise,
        "tokens": security.tokens,
        "tls_cert": security.tls_cert,
        "tls_key": security.tls_key,
        "tls_ca": security.tls_ca,
        "admin_acl": security.admin_acl,
        "v": str(config.logs.v or ""),
    }
    given = [f"--{name}={value}" for name, value in flags.items() if value]
    return ["-m", "sax.cli.local.leash", "admin_server", *given]


class AdminProcess:
    """Lives on the event loop."""

    def __init__(self, arguments: Sequence[str], *, first_pause_s: float = 1.0) -> None:
        """first_pause_s: before it is started again; later ones are longer."""
        self._arguments = arguments
        self._first_pause_s = first_pause_s
        self._child: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Let it drain, and end it if it does not."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeping
        child = self._child
        if child is None or child.returncode is not None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), _STOP_S)
        except TimeoutError:
            child.kill()
            await child.wait()

    async def _keep(self) -> None:
        """Start it, and again whenever it ends, after pauses that grow."""
        pause_s, loop = self._first_pause_s, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, *self._arguments, stdin=asyncio.subprocess.PIPE
            )
            logger.info("admin server started as process %d", self._child.pid)
            status = await self._child.wait()
            if loop.time() - began_s > _GOOD_LIFE_S:
                pause_s = self._first_pause_s
            logger.warning("the admin server ended with status %d; again in %g s", status, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
