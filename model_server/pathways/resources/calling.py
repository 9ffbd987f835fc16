"""A worker's or proxy server's connection to the resource manager, made again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from model_server.pathways.link.connection import Connection, connect
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.resources import messages

logger = logging.getLogger(__name__)

_AGAIN_S = 0.3
_BEAT_S = 0.4


class ManagerLink:
    """Keeps one connection. Belongs to the event loop."""

    def __init__(
        self,
        address: str,
        safety: LinkSafety,
        first: Callable[[], messages.Message],
        received: Callable[[messages.Message], None],
        beat: Callable[[], messages.Message] = messages.Alive,
    ) -> None:
        """first: message to send on every new connection. beat: heartbeat, sent all the time."""
        self._address = address
        self._safety = safety
        self._first = first
        self._received = received
        self._beat = beat
        self._connection: Connection[messages.Message] | None = None
        self._ended = asyncio.Event()

    def send(self, message: messages.Message) -> None:
        """Send, or drop the message while there is no connection."""
        if self._connection is not None:
            self._connection.send(message)

    async def run(self) -> None:
        """Connect and beat until cancelled."""
        told = False
        while True:
            try:
                await self._hold()
                told = False
            except OSError as exc:
                if not told:
                    logger.warning("no resource manager at %s yet: %s", self._address, exc)
                told = True
            await asyncio.sleep(_AGAIN_S)

    async def _hold(self) -> None:
        """Stay connected until the connection ends. Raises OSError if there is none."""
        self._ended.clear()
        self._connection = await connect(self._address, self._protocol, self._safety.client())
        try:
            self._connection.send(self._first())
            while self._connection.open:
                self._connection.send(self._beat())
                try:
                    await asyncio.wait_for(self._ended.wait(), _BEAT_S)
                except TimeoutError:
                    continue
            logger.warning("lost the resource manager at %s", self._address)
        finally:
            self._connection.close()
            self._connection = None

    def _protocol(self) -> Connection[messages.Message]:
        return Connection(
            messages.DECODER,
            lambda connection, message, body: self._received(message),
            lambda connection: self._ended.set(),
        )
