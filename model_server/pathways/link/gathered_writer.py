"""Writes of one pass of the event loop, gathered into one.

A decode step is a dozen small messages each way. Written one by one, each costs a system call here
and a wake-up of whoever reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from model_server.pathways.scheduling.answers import Buffer

_MOST = 256 << 10  # bytes that wait for the end of a pass; the transport then says when to pause


class GatheredWriter:
    """The writing side of a transport. Belongs to the event loop."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[Buffer] = []
        self._bytes = 0

    @property
    def open(self) -> bool:
        return not self._transport.is_closing()

    def write(self, parts: Iterable[Buffer]) -> None:
        """Write parts, soon, which must not change until then; nothing once it is closing."""
        if not self.open:
            return
        if not self._parts:
            self._loop.call_soon(self.flush)
        for part in parts:
            self._parts.append(part)
            self._bytes += len(part)
        if self._bytes > _MOST:
            self.flush()

    def flush(self) -> None:
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts and self.open:
            self._transport.writelines(parts)

    def finish(self) -> None:
        """Close the sending half after all pending writes; receiving goes on."""
        self.flush()
        if self.open and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Close the transport after all pending writes."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the transport at once, after the pending writes that it takes now."""
        self.flush()
        self._transport.abort()
