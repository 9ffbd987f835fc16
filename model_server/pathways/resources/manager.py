"""The resource manager: workers enrol with it, proxy servers watch it. One event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

import msgspec

from model_server.pathways.link.connection import Connection, Listener
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.resources import messages
from model_server.pathways.resources.roster import Roster

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]
_LOOK_S = 0.2


class ResourceManager(Listener[messages.Message]):
    """Serves a roster. Belongs to the event loop."""

    def __init__(self, roster: Roster) -> None:
        super().__init__(messages.DECODER)
        self.roster = roster
        self._workers: dict[Peer, str] = {}  # -> incarnation
        self._watchers: dict[Peer, str] = {}  # -> name
        self._clients: dict[Peer, list[messages.ClientLine]] = {}
        self._last: messages.Islands | None = None
        self._looking: asyncio.Task[None] | None = None
        self._began_s = 0.0

    async def start(self, address: str, safety: LinkSafety) -> int:
        """Listen and return the port. Raises OSError."""
        port = await self.open(address, safety)
        self._began_s = time.time()
        self._looking = asyncio.create_task(self._look())
        return port

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        super().close()

    @property
    def clients(self) -> Mapping[str, list[messages.ClientLine]]:
        """Clients by the name of their proxy server."""
        return {self._watchers[peer]: lines for peer, lines in self._clients.items()}

    def pause(self, session: int, paused: bool) -> bool:
        """Pause or resume a client; False: no proxy server has it."""
        for peer, lines in self._clients.items():
            if any(line.session == session for line in lines):
                peer.send(messages.Pause(session, paused))
                return True
        return False

    def received(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        now_s = time.time()
        if (incarnation := self._workers.get(peer)) is not None:
            self.roster.heard(incarnation, now_s)
        match message:
            case messages.Enrol():
                self._enrol(peer, message, now_s)
            case messages.Ready(devices):
                self._ready(peer, devices, now_s)
            case messages.Trouble(text):
                self.roster.tell(f"{self._name(peer)}: {text}", now_s)
            case messages.Watch(name):
                self._watchers[peer] = name
                peer.send(self._told())
            case messages.Clients(lines):
                self._clients[peer] = lines
            case messages.Alive():
                pass
            case _:
                peer.close()

    def _enrol(self, peer: Peer, said: messages.Enrol, now_s: float) -> None:
        verdict = self.roster.enrol(said, now_s)
        if isinstance(verdict, messages.TurnedAway):
            peer.send(verdict)
            return
        if self.roster.island_of(said.incarnation) is not None:
            self._workers[peer] = said.incarnation
        if verdict is not None:
            peer.send(verdict)
        else:
            self._place(said.incarnation)
        self._publish()

    def _place(self, incarnation: str) -> None:
        """Tell all workers of an island that is complete."""
        island = self.roster.island_of(incarnation)
        assert island is not None
        self.roster.start(island)
        for each, placed in self.roster.placed(island).items():
            self._peer(each, placed)

    def _peer(self, incarnation: str, message: messages.Message) -> None:
        for peer, each in self._workers.items():
            if each == incarnation:
                peer.send(message)

    def _ready(self, peer: Peer, devices: int, now_s: float) -> None:
        why = self.roster.ready(self._workers.get(peer, ""), devices, now_s)
        if why:
            peer.send(messages.TurnedAway(why))
        self._publish()

    def ended(self, peer: Peer) -> None:
        super().ended(peer)
        self._watchers.pop(peer, None)
        self._clients.pop(peer, None)
        if (incarnation := self._workers.pop(peer, None)) is not None:
            self._gone(incarnation, peer.why)

    def _gone(self, incarnation: str, why: str) -> None:
        for other in self.roster.gone(incarnation, why, time.time()):
            self._peer(other, messages.TurnedAway(f"another host of its island was lost: {why}"))
        self._publish()

    def _publish(self) -> None:
        """Tell proxy servers about the islands if anything changed."""
        islands = self._told()
        if islands != self._last:
            self._last = islands
            for peer in self._watchers:
                peer.send(islands)

    def _told(self) -> messages.Islands:
        """Return the islands as proxy servers see them.

        Workers outlive their resource manager: one that has just started reports no island as down
        until the workers have had the time to enrol again.
        """
        islands = self.roster.islands()
        if time.time() - self._began_s > self.roster.lease_s:
            return islands
        return msgspec.structs.replace(islands, lines=[line for line in islands.lines if line.up])

    def _name(self, peer: Peer) -> str:
        if (incarnation := self._workers.get(peer)) is not None:
            return f"worker of island {self.roster.island_of(incarnation)}"
        return self._watchers.get(peer, peer.peer)

    async def _look(self) -> None:
        """End leases, and the time in which islands may yet come back to a new manager."""
        looked_s = time.time()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s = time.time()
            late_s, looked_s = now_s - looked_s - _LOOK_S, now_s
            if abs(late_s) > _LOOK_S:  # this process was stopped, or the clock was set
                self.roster.stood_still(late_s, now_s)
                self._began_s += late_s
            self._end_leases(now_s)
            self._publish()

    def _end_leases(self, now_s: float) -> None:
        for incarnation in self.roster.silent(now_s):
            self._gone(incarnation, f"silent for {self.roster.lease_s:g} s")
            for peer in [peer for peer, each in self._workers.items() if each == incarnation]:
                peer.close()
