"""One client's session: its handles, its host buffers and its answers on their way out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from model_server.pathways.proxy.host_buffers import HostBuffers
from model_server.pathways.scheduling.handles import HandleTable


class Donations:
    """Those of one client's programs."""

    def __init__(self) -> None:
        self._places: dict[int, frozenset[int]] = {}  # of arguments, by program

    def note(self, programs: Iterable[int], response: Any) -> None:
        """Note what an IfrtResponse to a LoadedExecutableMetadataRequest tells."""
        if response.WhichOneof("response") is None:
            return  # refused
        told = response.loaded_executable_metadata_response.donated_input_indices
        for program in programs:
            self._places[program] = frozenset(told.donated_input_indices)

    def forget(self, programs: Iterable[int]) -> None:
        for program in programs:
            self._places.pop(program, None)

    def kept(self, reads: Collection[int]) -> Collection[int]:
        """Return what an execution only reads, of its program and arguments in this order.

        Nothing is known to be, before a client has asked for the program's metadata.
        """
        program, *arguments = reads or (0,)
        donated = self._places.get(program)
        if donated is None:
            return ()
        reused = {each for place, each in enumerate(arguments) if place in donated}
        return {program, *arguments} - reused


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
