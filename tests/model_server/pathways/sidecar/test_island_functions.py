"""A worker's connection to its sidecar, against one that adds numbers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from model_server.pathways.link.connection import Connection, listen
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.scheduling.handles import UNAVAILABLE, Fault
from model_server.pathways.sidecar import messages
from model_server.pathways.sidecar.island_functions import Outcome, SidecarLink
from model_server.pathways.sidecar.messages import HostArray
from model_server.pathways.worker.statuses import Poisoned
from tests.model_server.pathways.certificates import issued
from tests.model_server.waiting import until

Peer = Connection[messages.Message]
PLACE = messages.SidecarPlace([(2, 0), (3, 0)], [2, 3])


class AddingSidecar:
    """Functions are numbers, in letters, that are added to every byte; None answers nothing."""

    def __init__(self) -> None:
        self.received: list[messages.Message] = []
        self.peers: list[Peer] = []
        self._functions: dict[int, int] = {}
        self._server: asyncio.Server | None = None
        self.silent = False

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        self._functions.clear()
        self._server, found = await listen(
            f"127.0.0.1:{port}",
            lambda: Connection(messages.DECODER, self._take, lambda _: None, self.peers.append),
            tls,
        )
        return found

    def end(self) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.close()
        self.peers.clear()

    def _take(self, peer: Peer, message: messages.Message, body: memoryview) -> None:
        self.received.append(message)
        match message:
            case messages.SidecarPlace():
                peer.send(messages.SidecarStarted())
            case messages.LoadFunction(number, function):
                self._load(peer, number, function, bytes(body))
            case messages.CallFunction() if not self.silent:
                self._call(peer, message, body)

    def _load(self, peer: Peer, number: int, function: int, text: bytes) -> None:
        if not text.isdigit():
            peer.send(messages.FunctionFailed(number, 2, "no number"))
            return
        self._functions[function] = int(text)
        peer.send(messages.FunctionLoaded(number))

    def _call(self, peer: Peer, call: messages.CallFunction, body: memoryview) -> None:
        added = self._functions[call.function]
        made = [
            HostArray(each.kind, each.shape, {
                device: bytes(byte + added for byte in bytes(data))
                for device, data in each.parts.items()
            })
            for each in messages.unpacked(call.arguments, body)
        ]  # fmt: skip
        said, parts = messages.packed(made)
        peer.send(messages.FunctionResult(call.number, said), parts)


class Worker:
    """A worker's side: calls come from other threads than the loop's."""

    def __init__(self, port: int, safety: LinkSafety | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.link = SidecarLink(f"127.0.0.1:{port}", safety or LinkSafety(), PLACE, loop)

    async def load(self, text: bytes) -> int:
        return await asyncio.to_thread(self.link.load, 7, text)

    async def call(self, function: int) -> Outcome:
        came: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        array = HostArray(9, (4,), {2: b"\1\2", 3: b"\3\4"})
        await asyncio.to_thread(self.link.call, 7, function, [array], came.set_result)
        return await asyncio.wait_for(came, 60)


@pytest.fixture
async def sidecar() -> AsyncIterator[AddingSidecar]:
    made = AddingSidecar()
    yield made
    if made.peers:
        made.end()


async def test_parts_of_arguments_go_and_come_by_device(sidecar: AddingSidecar) -> None:
    worker = Worker(await sidecar.start())
    made: Any = await worker.call(await worker.load(b"5"))
    assert [bytes(made[0].parts[device]) for device in (2, 3)] == [b"\6\7", b"\x08\x09"]
    assert (made[0].kind, made[0].shape) == (9, (4,))
    assert sidecar.received[0] == PLACE


async def test_a_function_that_cannot_be_loaded_says_why(sidecar: AddingSidecar) -> None:
    worker = Worker(await sidecar.start())
    with pytest.raises(Poisoned, match="no number"):
        await worker.load(b"f")


async def test_a_sidecar_that_is_started_again_gets_the_functions_that_are_still_held(
    sidecar: AddingSidecar,
) -> None:
    port = await sidecar.start()
    worker = Worker(port)
    held, dropped = await worker.load(b"1"), await worker.load(b"2")
    worker.link.drop(dropped)
    await until(lambda: messages.DropFunction(7, dropped) in sidecar.received)
    sidecar.end()
    await until(lambda: not sidecar.peers)
    outcome = await worker.call(held)
    assert isinstance(outcome, Fault)
    assert outcome.code == UNAVAILABLE
    sidecar.received.clear()
    await sidecar.start(port)
    made: Any = await worker.call(held)
    assert bytes(made[0].parts[2]) == b"\2\3"
    place, load, call = sidecar.received
    assert place == PLACE
    assert isinstance(load, messages.LoadFunction)
    assert isinstance(call, messages.CallFunction)
    assert load.function == call.function == held


async def test_calls_that_were_under_way_end_with_the_sidecar(sidecar: AddingSidecar) -> None:
    worker = Worker(await sidecar.start())
    function = await worker.load(b"1")
    sidecar.silent = True
    calling = asyncio.create_task(worker.call(function))
    await until(lambda: any(isinstance(each, messages.CallFunction) for each in sidecar.received))
    sidecar.end()
    outcome = await calling
    assert isinstance(outcome, Fault)
    assert (outcome.code, "has ended" in outcome.text) == (UNAVAILABLE, True)


async def test_no_sidecar_is_told_in_words() -> None:
    sidecar = AddingSidecar()
    port = await sidecar.start()
    sidecar.end()
    with pytest.raises(Poisoned, match=f"no sidecar answers at 127.0.0.1:{port}"):
        await Worker(port).load(b"1")


async def test_certificates_of_one_authority_let_a_worker_in_and_no_others(
    sidecar: AddingSidecar, tmp_path: Path
) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    port = await sidecar.start(tls=issued(tmp_path, "sidecar", ours).server())
    assert await Worker(port, issued(tmp_path, "worker", ours)).load(b"1")
    for stranger in (LinkSafety(), issued(tmp_path, "stranger", theirs)):
        with pytest.raises(Poisoned, match="sidecar"):
            await Worker(port, stranger).load(b"1")
