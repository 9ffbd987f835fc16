"""The role proxy_server."""

from __future__ import annotations

import asyncio
import logging
import socket

from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.proxy.front import Front
from model_server.pathways.proxy.island_keeper import IslandKeeper
from model_server.pathways.proxy.service import service_of
from model_server.pathways.resources.calling import ManagerLink
from model_server.pathways.resources.messages import Islands, Message, Pause, Watch
from model_server.pathways.roles.flags import PathwaysFlags

logger = logging.getLogger(__name__)

_BEGIN_S = 0.1


async def serve_proxy(flags: PathwaysFlags, stop: asyncio.Event) -> None:
    """Serve clients until told to stop. Raises OSError, InvalidRequest."""
    front = Front(buffer_bytes=flags.host_buffer_bytes)
    front.compile_options = flags.compile_options
    front.takes_functions = flags.takes_functions
    keeper = IslandKeeper(front, flags.safety)

    def received(message: Message) -> None:
        match message:
            case Islands():
                keeper.follow(message)
            case Pause(session, paused):
                front.pause(session, paused)
            case _:
                logger.warning("an unknown word of the resource manager: %s", message)

    name = f"{socket.gethostname()}:{flags.port}"
    link = ManagerLink(flags.manager, flags.safety, lambda: Watch(name), received, keeper.clients)
    linking = asyncio.create_task(link.run())
    proxy = GrpcServer(service_of(front))
    try:
        # Clients connect once and learn the devices then: they wait outside until all are there.
        await _islands(front, flags.elastic_islands, stop)
        if not stop.is_set():
            port = await proxy.start(f"{flags.host}:{flags.port}", flags.safety.server())
            logger.info("proxy server of %d islands at port %d", len(front.ground.epochs), port)
        await stop.wait()
    finally:
        linking.cancel()
        await proxy.stop()
        keeper.close()


async def _islands(front: Front, elastic: int, stop: asyncio.Event) -> None:
    """Wait until all islands, but for so many, are up."""
    while not stop.is_set():
        wanted = max(1, len(front.expected) - elastic)
        if front.expected and len(front.ground.epochs) >= wanted:
            return
        await asyncio.sleep(_BEGIN_S)
