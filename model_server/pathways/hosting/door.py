"""A worker's door: fronts connect here to have requests executed, other workers to bring arrays."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

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
        self._sessions: defaultdict[Peer, set[int]] = defaultdict(set)
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
                self._sessions[peer].discard(session)
                self._forget(session)
            case messages.Ship(transfer=transfer):
                self._parcels.ship(message, lambda fault: _told(peer, transfer, fault))
            case messages.Expect(transfer=transfer):
                self._parcels.expect(message, lambda: peer.send(messages.Arrived(transfer)))
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
        self._sessions[peer] = set()
        peer.send(messages.Described(self._incarnation), (self._description,))

    def _run(self, peer: Peer, run: messages.RunRequest, body: memoryview) -> None:
        self._sessions[peer].add(run.session)
        buffers = messages.cut(body, run.request, run.buffers)
        errand = Errand(run.session, run.made, bytes(body[: run.request]), buffers)

        def answered(reply: Reply) -> None:
            sizes = [(handle, len(data)) for handle, data in reply.buffers.items()]
            told = messages.Told(run.number, len(reply.response), sizes)
            peer.send(told, (reply.response, *reply.buffers.values()))

        self._thread.run(errand, answered)

    def _ended(self, peer: Peer) -> None:
        """Free what a front that is gone had here."""
        self._peers.discard(peer)
        for session in self._sessions.pop(peer, ()):
            self._forget(session)

    def _forget(self, session: int) -> None:
        self._parcels.forget(session)
        self._thread.forget(session)


def _told(peer: Peer, transfer: int, fault: Fault | None) -> None:
    peer.send(messages.Shipped(transfer, *(fault or (0, ""))))
