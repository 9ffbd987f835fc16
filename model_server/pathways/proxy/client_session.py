"""One client's session: its handles, its host buffers and its answers on their way out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

from model_server.pathways.scheduling.answers import Buffer
from model_server.pathways.scheduling.handles import Fault, HandleTable
from sax.errors import NotFound, QueueFull

_MOST_FAULTS = 1024
WAIT_S = 30.0  # for bytes that a request names before they are all here


class HostBuffers:
    """One session's host buffers: bytes on their way to the devices and back.

    Bytes from the client are taken by the request that names them; bytes from workers wait for the
    client to look them up and delete them. Bounded, freed with the session, on the event loop.
    """

    def __init__(self, limit: int) -> None:
        """limit: bytes held at a time; a single larger buffer is taken when there is no other."""
        self._limit = limit
        self._held: dict[int, Buffer] = {}
        self._faults: dict[int, Fault] = {}
        self._expected: set[int] = set()
        self._waited: dict[int, asyncio.Future[None]] = {}
        self.bytes = 0
        self.stored = 0  # bytes that the client ever sent

    def __len__(self) -> int:
        return len(self._held)

    def store(self, handle: int, data: Buffer) -> None:
        """Keep the bytes under a handle. Raises QueueFull."""
        if self.bytes and self.bytes + len(data) > self._limit:
            raise QueueFull(
                f"{self.bytes} bytes of host buffers wait in this session and {len(data)} more "
                f"would pass the limit of {self._limit}: let earlier transfers finish first, or "
                "start the proxy server with a larger --host_buffer_bytes"
            )
        self.stored += len(data)
        self.fill(handle, data)

    def fill(self, handle: int, data: Buffer) -> None:
        """Keep bytes that came from the devices: they were asked for, so no limit applies."""
        self.delete(handle)
        self._held[handle] = data
        self.bytes += len(data)
        self._wake(handle)

    def expect(self, handle: int) -> None:
        """Note that the devices will fill a buffer, so look-ups wait for it."""
        self._expected.add(handle)

    def fail(self, handle: int, fault: Fault) -> None:
        """Note why an expected buffer does not come: look-ups return it."""
        if len(self._faults) >= _MOST_FAULTS:
            self._faults.pop(next(iter(self._faults)))
        self._faults[handle] = fault
        self._wake(handle)

    async def look_up(self, handle: int) -> Buffer | Fault:
        """Return the bytes under a handle, or why there are none. Raises NotFound."""
        while (found := self.look_now(handle)) is None:
            await self._arrival(handle)
        return found

    def look_now(self, handle: int) -> Buffer | Fault | None:
        """Return what `look_up` would; None if it would wait. Raises NotFound."""
        if handle in self._expected:
            return None
        return self._faults[handle] if handle in self._faults else self.look(handle)

    def missing(self, handles: Iterable[int]) -> list[int]:
        return [handle for handle in handles if handle not in self._held]

    async def wait(self, handles: Collection[int]) -> None:
        """Return once all are here. Raises NotFound after a time."""
        if not self.missing(handles):
            return
        try:
            async with asyncio.timeout(WAIT_S):
                while missing := self.missing(handles):  # others come while one is waited for
                    await self._arrival(missing[0])
        except TimeoutError:
            raise NotFound(
                f"host buffers {self.missing(handles)} did not arrive within {WAIT_S:g} s: store "
                "them before the request that names them"
            ) from None

    def take(self, handles: Iterable[int]) -> dict[int, Buffer]:
        """Remove and return buffers, for the request that names them. Raises NotFound."""
        found: dict[int, Buffer] = {}
        for handle in dict.fromkeys(handles):
            found[handle] = self.look(handle)
        for handle in found:
            self.delete(handle)
        return found

    def look(self, handle: int) -> Buffer:
        """Return the bytes under a handle. Raises NotFound."""
        if handle in self._held:
            return self._held[handle]
        raise NotFound(
            f"no host buffer {handle} in this session: it was never stored, or is used or deleted"
        )

    def delete(self, handle: int) -> None:
        """Free a buffer. Idempotent."""
        self._faults.pop(handle, None)
        if (data := self._held.pop(handle, None)) is not None:
            self.bytes -= len(data)

    def close(self) -> None:
        """Free everything, and end the look-ups that wait."""
        self._held.clear()
        self._faults.clear()
        self._expected.clear()
        self.bytes = 0
        for waited in self._waited.values():
            waited.cancel()
        self._waited.clear()

    async def _arrival(self, handle: int) -> None:
        waited = self._waited.get(handle)
        if waited is None:
            waited = self._waited[handle] = asyncio.get_running_loop().create_future()
        await asyncio.shield(waited)

    def _wake(self, handle: int) -> None:
        self._expected.discard(handle)
        waited = self._waited.pop(handle, None)
        if waited is not None and not waited.done():
            waited.set_result(None)


class Donations:
    """Arguments that a client's programs reuse the memory of."""

    def __init__(self) -> None:
        self._places: dict[int, frozenset[int]] = {}  # of arguments, by program

    def note(self, programs: Iterable[int], response: Any) -> None:
        """Read an IfrtResponse to a LoadedExecutableMetadataRequest."""
        if response.WhichOneof("response") is None:
            return  # refused
        found = response.loaded_executable_metadata_response.donated_input_indices
        for program in programs:
            self._places[program] = frozenset(found.donated_input_indices)

    def forget(self, programs: Iterable[int]) -> None:
        for program in programs:
            self._places.pop(program, None)

    def kept(self, reads: Collection[int]) -> Collection[int]:
        """Return the handles that an execution only reads, of its program and arguments.

        reads: the program, then its arguments in order. None is known before a client has asked for
        the program's metadata.
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
        self.number = number  # unguessable: it gives access to the session's host buffers
        self.name = name
        self.weight = weight
        self.table = HandleTable()
        self.donations = Donations()
        self.buffers = HostBuffers(buffer_bytes)
        self.requests = 0
        self.works = 0  # requests that occupied devices
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
