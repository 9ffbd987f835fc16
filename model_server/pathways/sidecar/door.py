"""The sidecar's door: its worker connects here. Functions of one client run one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from model_server.pathways.link.connection import Connection, listen
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.handles import INVALID
from model_server.pathways.scheduling.merging import Buffer
from model_server.pathways.sidecar import messages
from model_server.pathways.sidecar.functions import ClientFunction, Functions
from model_server.pathways.worker.waiting import WaitingThread
from sax.errors import SaxError

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]
_UNKNOWN = 2  # code of an error of the function's own


class _WorkerPeer:
    """One worker's connection: its functions, and a thread per client."""

    def __init__(self) -> None:
        self.functions: dict[int, ClientFunction] = {}
        self.threads: dict[int, WaitingThread] = {}

    def thread(self, session: int) -> WaitingThread:
        if session not in self.threads:
            self.threads[session] = WaitingThread(f"functions of {session:x}")
        return self.threads[session]

    def drop(self, session: int, function: int) -> None:
        """Let a function go after the calls before: it may hold what another one needs."""

        def drop() -> None:
            self.functions.pop(function, None)

        if (thread := self.threads.get(session)) is None:
            drop()
        else:
            thread.run(drop)

    def forget(self, session: int) -> None:
        if (thread := self.threads.pop(session, None)) is not None:
            thread.end()

    def close(self) -> None:
        self.functions.clear()
        for thread in self.threads.values():
            thread.end()


_LOADS = 0  # the thread that unpickles; sessions are never 0


class SidecarDoor:
    """Belongs to the event loop."""

    def __init__(self, end: Callable[[], None]) -> None:
        """end: called when this process cannot be what a worker asks of it."""
        self._end = end
        self._functions = Functions()
        self._workers: dict[Peer, _WorkerPeer] = {}
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None

    async def open(self, address: str, safety: LinkSafety) -> int:
        """Listen and return the port. Raises OSError."""
        self._server, port = await listen(address, self._protocol, safety.server())
        return port

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for peer in list(self._workers):
            peer.close()

    def _protocol(self) -> Peer:
        return Connection(messages.DECODER, self._received, self._ended, self._opened)

    def _opened(self, peer: Peer) -> None:
        self._workers[peer] = _WorkerPeer()

    def _ended(self, peer: Peer) -> None:
        self._workers.pop(peer).close()

    def _received(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        worker = self._workers[peer]
        match message:
            case messages.SidecarPlace():
                self._start(peer, message)
            case messages.LoadFunction(number, function):
                text = bytes(body)
                worker.thread(_LOADS).run(lambda: self._load(peer, worker, number, function, text))
            case messages.CallFunction(session=session, function=number):
                function = worker.functions[number]  # until it has run, even if it is dropped
                worker.thread(session).run(lambda: self._call(peer, function, message, body))
            case messages.DropFunction(session, number):
                worker.drop(session, number)
            case messages.ForgetClient(session):
                worker.forget(session)
            case _:
                peer.close()

    def _start(self, peer: Peer, place: messages.SidecarPlace) -> None:
        try:
            self._functions.start(place)
        except SaxError as error:
            logger.warning("%s: this process ends, to be started again", error.text)
            self._end()
        else:
            peer.send(messages.SidecarStarted())

    # On threads

    def _load(
        self, peer: Peer, worker: _WorkerPeer, number: int, function: int, text: bytes
    ) -> None:
        try:
            worker.functions[function] = self._functions.load(text)
        except BaseException as exc:  # code of a client
            self._send(peer, _failed(number, exc))
        else:
            self._send(peer, messages.FunctionLoaded(number))

    def _call(
        self, peer: Peer, function: ClientFunction, call: messages.CallFunction, body: memoryview
    ) -> None:
        try:
            given = messages.unpacked(call.arguments, body)
            said, parts = messages.packed(self._functions.run(function, given))
        except BaseException as exc:  # code of a client
            self._send(peer, _failed(call.number, exc))
        else:
            self._send(peer, messages.FunctionResult(call.number, said), parts)

    def _send(self, peer: Peer, message: Any, parts: list[Buffer] | None = None) -> None:
        self._loop.call_soon_threadsafe(peer.send, message, parts or [])


def _failed(number: int, error: BaseException) -> messages.FunctionFailed:
    if isinstance(error, SaxError):
        return messages.FunctionFailed(number, INVALID, error.text)
    return messages.FunctionFailed(number, _UNKNOWN, f"{type(error).__name__}: {error}")
