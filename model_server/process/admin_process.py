"""An admin server beside a model server: a child process that is kept running and ends with it.

It is started through `sax.cli.local.leash`, whose standard input is a pipe from this process: when
the pipe closes, even by a kill -9, the admin server drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence

from model_server.config import ModelServerConfig

logger = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 30.0
_GOOD_LIFE_S = 60.0  # after which its next end is not counted with those before
_STOP_S = 10.0
_STATUS_OFFSET = 2  # as 10002 stands to 10000


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
