"""Keeps the front's islands as the resource manager tells of them."""

from __future__ import annotations

import asyncio
import logging

from model_server.pathways.islands.linked_host import LinkedHost
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.proxy.front import Front
from model_server.pathways.resources.messages import ClientLine, Clients, IslandLine, Islands
from sax.errors import Unavailable

logger = logging.getLogger(__name__)

_AGAIN_S = 0.3


class IslandKeeper:
    """Begins and ends the lives of islands. Belongs to the event loop."""

    def __init__(self, front: Front, safety: LinkSafety) -> None:
        self._front = front
        self._safety = safety
        self._wanted: dict[int, IslandLine] = {}
        self._lives: dict[int, list[str]] = {}  # incarnations of the hosts of each life
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def follow(self, islands: Islands) -> None:
        """Take note of all islands as they are now."""
        self._front.expected.update(range(islands.expected))
        for line in islands.lines:
            self._wanted[line.island] = line
            living = self._lives.get(line.island)
            if living is not None and not (line.up and line.incarnations == living):
                self._end(line.island, line.note or "its workers are others")
            if line.up and line.island not in self._lives:
                self._begin(line.island)

    def clients(self) -> Clients:
        """Return the front's clients for the status page."""
        front = self._front
        return Clients(
            [
                ClientLine(
                    session.number,
                    session.name,
                    session.weight,
                    session.requests,
                    len(session.table),
                    session.buffers.bytes,
                    session.buffers.stored,
                    front.waiting(session.number),
                    session.paused,
                )
                for session in front.sessions.values()
            ]
        )

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for number in list(self._lives):
            self._end(number, "the proxy server ends")

    def _begin(self, number: int) -> None:
        if number not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._connect(number))
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _connect(self, number: int) -> None:
        """Connect to all hosts of an island, again and again while it is said to be up."""
        while (line := self._wanted[number]).up:
            if await self._try(number, line):
                return
            await asyncio.sleep(_AGAIN_S)

    async def _try(self, number: int, line: IslandLine) -> bool:
        def lost(why: str) -> None:
            if self._lives.get(number) == line.incarnations:
                self._end(number, why)
                self._begin(number)  # in case only the connection broke

        hosts = [LinkedHost(address, lost) for address in line.addresses]
        greetings = zip(hosts, line.incarnations, strict=True)
        tls = self._safety.client()
        try:
            await asyncio.gather(*(host.greet(incarnation, tls) for host, incarnation in greetings))
        except Unavailable as error:
            logger.warning("island %d: %s", number, error.text)
            for host in hosts:
                host.close()
            return False
        self._lives[number] = line.incarnations
        self._front.island(number).begin(hosts)
        self._front.survey()
        logger.info("island %d is up", number)
        return True

    def _end(self, number: int, why: str) -> None:
        self._lives.pop(number, None)
        self._front.island(number).end(why)
        self._front.survey()
