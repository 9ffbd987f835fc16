"""A worker's door: fronts connect here to have requests executed, other workers to bring arrays."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict

import msgspec

from model_server.pathways.hosting.executor_thread import ExecutorThread
from model_server.pathways.hosting.parcels import ParcelRoom
from model_server.pathways.islands.host import Errand
from model_server.pathways.link import messages
from model_server.pathways.link.connection import Connection, listen
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.merging import Reply

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]


class WorkerDoor:
    """Serves an executor to every front that connects. Belongs to the event loop."""

    def __init__(self, thread: ExecutorThread, parcels: ParcelRoom, incarnation: str) -> None:
        self._thread = thread
        self._parcels = parcels
        self._incarnation = incarnation
        self._description: bytes = thread.executor.describe().SerializeToString()
        # Session numbers here, by front: one that comes back, after this process stood still or
        # was cut off, starts anew, while what it had before is still being freed.
        self._sessions: defaultdict[Peer, dict[int, int]] = defaultdict(dict)
        self._count = itertools.count(1)
        self._peers: set[Peer] = set()  # also of other workers
        self._server: asyncio.Server | None = None

    async def open(self, address: str, safety: LinkSafety) -> int:
        """Listen and return the port. Raises OSError."""
        self._server, port = await listen(address, self._protocol, safety.server())
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers):
            peer.close()

    def _protocol(self) -> Peer:
        return Connection(messages.DECODER, self._received, self._ended, self._peers.add)

    def _received(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        match message:
            case messages.RunRequest():
                self._run(peer, message, body)
            case messages.Forget(session):
                self._forget(self._sessions[peer].pop(session, None))
            case messages.Ship(session, transfer=transfer):
                here = msgspec.structs.replace(message, session=self._session(peer, session))
                self._parcels.ship(here, lambda fault: _told(peer, transfer, fault))
            case messages.Expect(session, transfer=transfer):
                here = msgspec.structs.replace(message, session=self._session(peer, session))
                self._parcels.expect(here, lambda: peer.send(messages.Arrived(transfer)))
            case messages.ParcelHead():
                self._parcels.arrived(message, body)
            case messages.Hail(incarnation):
                self._greet(peer, incarnation)
            case _:
                peer.close()

    def _greet(self, peer: Peer, incarnation: str) -> None:
        """Answer the front, unless it means a worker that was here before."""
        if incarnation != self._incarnation:
            logger.warning("a front at %s means another worker: it is turned away", peer.peer)
            peer.close()
            return
        peer.send(messages.Described(self._incarnation), (self._description,))

    def _run(self, peer: Peer, run: messages.RunRequest, body: memoryview) -> None:
        session = self._session(peer, run.session)
        buffers = messages.cut(body, run.request, run.buffers)
        errand = Errand(session, run.made, bytes(body[: run.request]), buffers)

        def answered(reply: Reply) -> None:
            sizes = [(handle, len(data)) for handle, data in reply.buffers.items()]
            told = messages.Told(run.number, len(reply.response), sizes)
            peer.send(told, (reply.response, *reply.buffers.values()))

        self._thread.run(errand, answered)

    def _ended(self, peer: Peer) -> None:
        """Free what a front that is gone had here."""
        self._peers.discard(peer)
        for session in self._sessions.pop(peer, {}).values():
            self._forget(session)

    def _session(self, peer: Peer, session: int) -> int:
        """Return the number under which a front's session is kept here."""
        sessions = self._sessions[peer]
        if session not in sessions:
            sessions[session] = next(self._count)
        return sessions[session]

    def _forget(self, session: int | None) -> None:
        if session is None:
            return
        self._parcels.forget(session)
        self._thread.forget(session)


def _told(peer: Peer, transfer: int, fault: Fault | None) -> None:
    peer.send(messages.Shipped(transfer, *(fault or (0, ""))))
