"""A worker's connection to its sidecar, made when a function comes and again when it was lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from model_server.pathways.link.connection import Connection, connect
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.handles import UNAVAILABLE, Fault
from model_server.pathways.sidecar import messages
from model_server.pathways.sidecar.messages import HostArray
from model_server.pathways.worker.statuses import Poisoned
from sax.errors import Unavailable

logger = logging.getLogger(__name__)

Peer = Connection[messages.Message]
Outcome = list[HostArray] | Fault
_CONNECT_S = 5.0


class _HeldFunction(NamedTuple):
    """A function of a client."""

    session: int
    text: bytes


class SidecarLink:
    """`load`, `call`, `drop` and `forget` may be called by any thread but the event loop's."""

    def __init__(
        self,
        address: str,
        safety: LinkSafety,
        place: messages.SidecarPlace,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._address = address
        self._safety = safety
        self._place = place
        self._loop = loop
        self._numbers = itertools.count(1)  # 0: the answer to SidecarPlace
        self._functions: dict[int, _HeldFunction] = {}  # to load again
        self._open: dict[tuple[Peer, int], asyncio.Future[Outcome]] = {}
        self._peer: Peer | None = None
        self._connecting = asyncio.Lock()

    def load(self, session: int, text: bytes) -> int:
        """Return the number of a function that the sidecar keeps. Raises Poisoned."""
        function = next(self._numbers)
        loading = self._load(function, _HeldFunction(session, text))
        outcome = asyncio.run_coroutine_threadsafe(loading, self._loop).result()
        if isinstance(outcome, Fault):
            raise Poisoned(outcome)
        return function

    def call(
        self,
        session: int,
        function: int,
        arguments: Sequence[HostArray],
        done: Callable[[Outcome], None],
    ) -> None:
        """Run a function after those before it; `done` is called on the event loop."""

        async def run() -> None:
            said, parts = messages.packed(arguments)
            number = next(self._numbers)
            done(await self._ask(messages.CallFunction(number, session, function, said), parts))

        asyncio.run_coroutine_threadsafe(run(), self._loop)

    def drop(self, function: int) -> None:
        def drop() -> None:
            held = self._functions.pop(function, None)
            if held is not None and self._peer is not None:
                self._peer.send(messages.DropFunction(held.session, function))

        self._loop.call_soon_threadsafe(drop)

    def forget(self, session: int) -> None:
        def forget() -> None:
            if self._peer is not None:
                self._peer.send(messages.ForgetClient(session))

        self._loop.call_soon_threadsafe(forget)

    async def _load(self, function: int, held: _HeldFunction) -> Outcome:
        outcome = await self._ask(messages.LoadFunction(next(self._numbers), function), [held.text])
        if not isinstance(outcome, Fault):
            self._functions[function] = held
        return outcome

    async def _ask(
        self, message: messages.LoadFunction | messages.CallFunction, parts: Sequence[Any]
    ) -> Outcome:
        try:
            peer = await self._connected()
        except (OSError, Unavailable) as exc:
            return Fault(UNAVAILABLE, f"no sidecar answers at {self._address}: {exc}")
        return await self._answer(peer, message, parts)

    async def _answer(self, peer: Peer, message: Any, parts: Sequence[Any] = ()) -> Outcome:
        number = 0 if isinstance(message, messages.SidecarPlace) else message.number
        answer = self._open[peer, number] = self._loop.create_future()
        peer.send(message, parts)
        return await answer

    async def _connected(self) -> Peer:
        """Connect, if there is no connection. Raises OSError, Unavailable."""
        async with self._connecting:  # whoever asks waits in order
            if self._peer is None or not self._peer.open:
                self._peer = await self._connect()
            return self._peer

    async def _connect(self) -> Peer:
        async with asyncio.timeout(_CONNECT_S):
            peer = await connect(self._address, self._protocol, self._safety.client())
        outcome = await self._answer(peer, self._place)
        for function, held in list(self._functions.items()):
            if isinstance(outcome, Fault):
                break
            outcome = await self._answer(
                peer, messages.LoadFunction(next(self._numbers), function), [held.text]
            )
        if isinstance(outcome, Fault):
            peer.close()
            raise Unavailable(outcome.text)
        return peer

    def _protocol(self) -> Peer:
        return Connection(messages.DECODER, self._received, self._ended)

    def _received(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        match message:
            case messages.SidecarStarted():
                self._settle(peer, 0, [])
            case messages.FunctionLoaded(number):
                self._settle(peer, number, [])
            case messages.FunctionResult(number, arrays):
                self._settle(peer, number, messages.unpacked(arrays, body))
            case messages.FunctionFailed(number, code, text):
                self._settle(peer, number, Fault(code, text))
            case _:
                peer.close()

    def _settle(self, peer: Peer, number: int, outcome: Outcome) -> None:
        if (answer := self._open.pop((peer, number), None)) is not None and not answer.done():
            answer.set_result(outcome)

    def _ended(self, peer: Peer) -> None:
        lost = Fault(UNAVAILABLE, f"the sidecar at {self._address} has ended: {peer.why}")
        for of, number in list(self._open):
            if of is peer:
                self._settle(peer, number, lost)
