"""One client's session: its handles, its host buffers and its answers on their way out."""

from __future__ import annotations

import asyncio
from collections import deque

from model_server.pathways.proxy.host_buffers import HostBuffers
from model_server.pathways.scheduling.donations import Donations
from model_server.pathways.scheduling.handles import HandleTable


class ClientSession:
    """State of one stream of requests. Belongs to the event loop."""

    def __init__(self, number: int, *, name: str, weight: float, buffer_bytes: int) -> None:
        self.number = number  # unguessable: who knows it may store and look up its buffers
        self.name = name
        self.weight = weight
        self.table = HandleTable()
        self.donations = Donations()
        self.buffers = HostBuffers(buffer_bytes)
        self.requests = 0
        self.works = 0  # of them, those that occupied devices
        self.paused = False
        self.closed = False
        self._answers: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._relief = asyncio.Event()

    def answer(self, response: bytes) -> None:
        """Queue a serialized IfrtResponse for the client."""
        if not self.closed:
            self._answers.append(response)
            self._some.set()

    async def answers(self) -> list[bytes]:
        """Wait for answers and return all that are there; none once the session is closed."""
        await self._some.wait()
        return self.ready()

    def ready(self) -> list[bytes]:
        """Return the answers that are there."""
        self._some.clear()
        found = list(self._answers)
        self._answers.clear()
        return found

    async def relief(self) -> None:
        """Wait until one more request is answered, or the session closed."""
        self._relief.clear()
        await self._relief.wait()

    def relieve(self) -> None:
        self._relief.set()

    def close(self) -> None:
        self.closed = True
        self._relief.set()
        self.buffers.close()
        self._answers.clear()
        self._some.set()
