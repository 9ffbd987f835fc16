"""The prefill servers of this process, and the choice between them. Runs on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from model_server.disaggregation.mirror import PrefillMirror
from model_server.disaggregation.prefill_server import PrefillServer
from sax.types import ModelSpec


class PrefillServers:
    def __init__(
        self, addresses: Sequence[str], wanted: Callable[[], Mapping[str, ModelSpec]]
    ) -> None:
        self._addresses = addresses
        self._wanted = wanted
        self._servers: list[PrefillServer] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._turn = 0

    def start(self) -> None:
        self._servers = [PrefillServer(address) for address in self._addresses]
        self._keepers = [
            asyncio.create_task(PrefillMirror(server, self._wanted).run())
            for server in self._servers
        ]

    async def stop(self) -> None:
        """Disconnect; models stay loaded there and pages expire."""
        for keeper in self._keepers:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        await asyncio.gather(*(server.close() for server in self._servers))

    def choose(self, model_id: str) -> PrefillServer | None:
        """Return the usable server with the fewest prompts in flight, round-robin among equals."""
        usable = [server for server in self._servers if server.usable(model_id)]
        if not usable:
            return None
        least = min(server.asked for server in usable)
        equals = [server for server in usable if server.asked == least]
        self._turn += 1
        return equals[self._turn % len(equals)]
