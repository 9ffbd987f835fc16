"""The role proxy_server: connects to the islands' workers and serves clients.

Islands come and go as the resource manager reports them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.link import messages
from model_server.pathways.link.connection import Connection, connect
from model_server.pathways.link.safety import LinkSafety
from model_server.pathways.protocol import InitResponse
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.proxy.island import (
    Answered,
    ArrayDelivery,
    IslandRequest,
    Shipment,
    Shipped,
)
from model_server.pathways.proxy.service import service_of
from model_server.pathways.resources.calling import ManagerLink
from model_server.pathways.resources.messages import (
    ClientLine,
    Clients,
    IslandLine,
    Islands,
    Message,
    Pause,
    Watch,
)
from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.scheduling.answers import Reply
from model_server.pathways.scheduling.handles import Fault
from sax.errors import Unavailable

logger = logging.getLogger(__name__)

_GREETING_S = 5.0
_AGAIN_S = 0.3
_BEGIN_S = 0.1


class LinkedHost:
    """One worker of an island. Belongs to the event loop."""

    def __init__(self, address: str, lost: Callable[[str], None]) -> None:
        """lost: called once with the reason when the connection ends."""
        self.address = address
        self.description: Any = None
        self._lost = lost
        self._open: dict[int, Answered] = {}
        self._shipped: dict[int, Shipped] = {}
        self._arrived: dict[int, Callable[[], None]] = {}
        self._count = 0
        self._closed = False
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection: Connection[messages.Message] | None = None

    async def greet(self, incarnation: str, tls: ssl.SSLContext | None) -> None:
        """Connect and learn the worker's devices. Raises Unavailable."""
        try:
            async with asyncio.timeout(_GREETING_S):
                self._connection = await connect(self.address, self._protocol, tls)
                self._connection.send(messages.Hail(incarnation))
                await self._greeted
        except (OSError, TimeoutError) as exc:
            self.close()
            raise Unavailable(f"the worker at {self.address} does not answer: {exc}") from exc

    def run(self, request: IslandRequest, answered: Answered) -> None:
        self._count += 1
        self._open[self._count] = answered
        sizes = [(handle, len(data)) for handle, data in request.buffers.items()]
        head = messages.RunRequest(
            self._count, request.session, request.made, len(request.serialized), sizes
        )
        self._send(head, request.serialized, *request.buffers.values())

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        self._shipped[shipment.transfer] = shipped
        array = (shipment.session, shipment.array, shipment.transfer)
        self._send(messages.Ship(*array, list(shipment.addresses)))

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        self._arrived[arrival.transfer] = arrived
        array = (arrival.session, arrival.handle, arrival.transfer)
        devices = list(arrival.devices)
        self._send(messages.Expect(*array, devices, arrival.memory_kind))

    def fail_transfer(self, transfer: int, fault: Fault) -> None:
        self._send(messages.TransferHead(transfer, code=fault.code, text=fault.text))

    def forget(self, session: int) -> None:
        self._send(messages.Forget(session))

    def close(self) -> None:
        """End the connection without telling `lost`. Idempotent."""
        self._closed = True
        self._open.clear()
        if self._connection is not None:
            self._connection.close()

    def _send(self, message: Any, *parts: Any) -> None:
        if self._connection is not None:
            self._connection.send(message, parts)

    def _protocol(self) -> Connection[messages.Message]:
        return Connection(messages.DECODER, self._received, self._ended)

    def _received(
        self, connection: Connection[messages.Message], message: messages.Message, body: memoryview
    ) -> None:
        match message:
            case messages.RunResponse(number, response, buffers):
                if (answered := self._open.pop(number, None)) is not None:
                    answered(Reply(bytes(body[:response]), messages.cut(body, response, buffers)))
            case messages.Shipped(transfer, code, text):
                if (shipped := self._shipped.pop(transfer, None)) is not None:
                    shipped(Fault(code, text) if code else None)
            case messages.Arrived(transfer):
                if (arrived := self._arrived.pop(transfer, None)) is not None:
                    arrived()
            case messages.Described():
                self.description = InitResponse.FromString(bytes(body))
                if not self._greeted.done():
                    self._greeted.set_result(None)
            case _:
                connection.close()

    def _ended(self, connection: Connection[messages.Message]) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(ConnectionError(connection.why))
        elif not self._closed:
            self._closed = True
            self._lost(connection.why)


class IslandKeeper:
    """Connects to islands that come up and ends those that are lost. Belongs to the event loop."""

    def __init__(self, dispatcher: Dispatcher, safety: LinkSafety) -> None:
        self._dispatcher = dispatcher
        self._safety = safety
        self._wanted: dict[int, IslandLine] = {}
        self._connected: dict[int, list[str]] = {}  # incarnations of each island's hosts
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def follow(self, islands: Islands) -> None:
        """Take note of the islands that the resource manager reports."""
        self._dispatcher.expected.update(range(islands.expected))
        for line in islands.lines:
            self._wanted[line.island] = line
            connected = self._connected.get(line.island)
            if connected is not None and not (line.up and line.incarnations == connected):
                self._end(line.island, line.note or "it has other workers")
            if line.up and line.island not in self._connected:
                self._begin(line.island)

    def clients(self) -> Clients:
        """Return the clients for the status page."""
        dispatcher = self._dispatcher
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
                    dispatcher.waiting(session.number),
                    session.paused,
                )
                for session in dispatcher.sessions.values()
            ]
        )

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for number in list(self._connected):
            self._end(number, "the proxy server ends")

    def _begin(self, number: int) -> None:
        if number not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._connect(number))
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _connect(self, number: int) -> None:
        """Connect to all hosts of an island; try again as long as it is reported to be up."""
        while (line := self._wanted[number]).up:
            if await self._try(number, line):
                return
            await asyncio.sleep(_AGAIN_S)

    async def _try(self, number: int, line: IslandLine) -> bool:
        def lost(why: str) -> None:
            if self._connected.get(number) == line.incarnations:
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
        self._connected[number] = line.incarnations
        self._dispatcher.island(number).begin(hosts)
        self._dispatcher.survey()
        logger.info("island %d is up", number)
        return True

    def _end(self, number: int, why: str) -> None:
        self._connected.pop(number, None)
        self._dispatcher.island(number).end(why)
        self._dispatcher.survey()


async def serve_proxy(flags: PathwaysFlags, stop: asyncio.Event) -> None:
    """Serve clients until told to stop. Raises OSError, InvalidRequest."""
    dispatcher = Dispatcher(buffer_bytes=flags.host_buffer_bytes)
    dispatcher.compile_options = flags.compile_options
    dispatcher.takes_functions = flags.takes_functions
    keeper = IslandKeeper(dispatcher, flags.safety)

    def received(message: Message) -> None:
        match message:
            case Islands():
                keeper.follow(message)
            case Pause(session, paused):
                dispatcher.pause(session, paused)
            case _:
                logger.warning("an unknown message of the resource manager: %s", message)

    name = f"{socket.gethostname()}:{flags.port}"
    link = ManagerLink(flags.manager, flags.safety, lambda: Watch(name), received, keeper.clients)
    linking = asyncio.create_task(link.run())
    proxy = GrpcServer(service_of(dispatcher))
    try:
        # Clients learn the devices when they connect, and never again: all must be there by then.
        await _islands(dispatcher, flags.elastic_islands, stop)
        if not stop.is_set():
            port = await proxy.start(f"{flags.host}:{flags.port}", flags.safety.server())
            logger.info(
                "proxy server of %d islands at port %d", len(dispatcher.topology.epochs), port
            )
        await stop.wait()
    finally:
        linking.cancel()
        await proxy.stop()
        keeper.close()


async def _islands(dispatcher: Dispatcher, elastic: int, stop: asyncio.Event) -> None:
    """Wait until all islands are up, or all but `elastic` of them."""
    while not stop.is_set():
        wanted = max(1, len(dispatcher.expected) - elastic)
        if dispatcher.expected and len(dispatcher.topology.epochs) >= wanted:
            return
        await asyncio.sleep(_BEGIN_S)
