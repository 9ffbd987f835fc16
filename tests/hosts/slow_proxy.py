"""A TCP proxy that is slow, falls silent or hangs up as told: latency where the kernel has none.

Bytes keep their order and are never lost: what is held while it is silent comes after. `netem` is
what one would use otherwise, and many kernels have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_CHUNK = 64 * 1024
_END = b""  # one side will send no more


@dataclass(slots=True)
class SlowProxy:
    """Lives on the event loop."""

    host: str
    port: int  # of whom it stands before
    delay_s: float = 0.0  # each way, from now on
    address: str = ""  # host:port of its own
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def half_open(self) -> None:
        """Nothing passes, no end of a connection either: each side thinks the other is there."""
        self._flowing.clear()

    def flow(self) -> None:
        """Bytes pass again, and first those that were held."""
        self._flowing.set()

    def reset(self) -> None:
        """Hang up on both sides of every connection, as a process that was killed does."""
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            self.reset_one(writer)
            return
        self._writers.add(far_writer)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, far_writer))
                ways.create_task(self._carry(far_reader, writer))
        finally:
            self._writers -= {writer, far_writer}
            self._serving.discard(task)
            writer.close()
            far_writer.close()

    def reset_one(self, writer: asyncio.StreamWriter) -> None:
        """Nobody is there to connect it to."""
        self._writers.discard(writer)
        writer.transport.abort()

    async def close(self) -> None:
        """End every connection."""
        self.reset()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One way: what is read now is written after the delay, while more is read already."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._deliver(waiting, writer))
            while True:
                try:
                    data = await reader.read(_CHUNK)
                except ConnectionError:
                    data = _END
                await waiting.put((loop.time() + self.delay_s, data))
                if data == _END:
                    break

    async def _deliver(
        self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s, data = await waiting.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await self._flowing.wait()
            try:
                if data == _END:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
            except (ConnectionError, OSError, RuntimeError):
                if data == _END:
                    return  # it went away; what is still read goes nowhere


@asynccontextmanager
async def slow_proxy(host: str, port: int, *, delay_s: float = 0.0) -> AsyncGenerator[SlowProxy]:
    """A proxy before host:port, on a free port of this machine."""
    proxy = SlowProxy(host, port, delay_s)
    proxy.flow()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
