"""The local role: a proxy server and one island of this process's devices."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from model_server.pathways.http2.server import GrpcServer
from model_server.pathways.proxy.dispatcher import Dispatcher
from model_server.pathways.proxy.island import (
    Answered,
    ArrayDelivery,
    IslandRequest,
    Shipment,
    Shipped,
)
from model_server.pathways.proxy.service import service_of
from model_server.pathways.resources.messages import IslandPlacement
from model_server.pathways.resources.roster import parse_instance_type
from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.roles.worker import executor_of
from model_server.pathways.scheduling.handles import UNIMPLEMENTED, Fault
from model_server.pathways.worker.executor_thread import ExecutorThread, RequestExecutor
from sax.host import xla_threads

logger = logging.getLogger(__name__)

_ALONE = "there is one island here, and no other to copy to"


class InProcessHost:
    """The only host of an island, in this process."""

    address = ""

    def __init__(self, executor: RequestExecutor) -> None:
        self.description: Any = executor.describe()
        self._thread = ExecutorThread(executor)

    def run(self, request: IslandRequest, answered: Answered) -> None:
        self._thread.run(request, answered)

    def forget(self, session: int) -> None:
        self._thread.forget(session)

    def ship(self, shipment: Shipment, shipped: Shipped) -> None:
        shipped(Fault(UNIMPLEMENTED, _ALONE))

    def expect(self, arrival: ArrayDelivery, arrived: Callable[[], None]) -> None:
        arrived()

    def fail_transfer(self, transfer: int, fault: Fault) -> None:
        """Nothing is ever on its way here."""

    def close(self) -> None:
        self._thread.close()


def local_dispatcher(executor: RequestExecutor) -> Dispatcher:
    """Return a dispatcher whose only island is an executor in this process."""
    dispatcher = Dispatcher()
    dispatcher.island(0).begin([InProcessHost(executor)])
    dispatcher.survey()
    return dispatcher


async def serve_local(flags: PathwaysFlags, stop: asyncio.Event) -> None:
    """Serve clients with this process's devices until told to stop. Raises OSError."""
    instance = parse_instance_type(flags.instance_type)
    os.environ.setdefault("NPROC", str(xla_threads(instance.devices)))
    placement = IslandPlacement(0, 0, instance.devices, instance.platform, "")
    alone = replace(flags, island_hosts=1, sidecar="")
    dispatcher = local_dispatcher(executor_of(alone, placement, asyncio.get_running_loop()))
    proxy = GrpcServer(service_of(dispatcher))
    try:
        port = await proxy.start(f"{flags.host}:{flags.port}", flags.safety.server())
        logger.info("proxy server of this process's devices at port %d", port)
        await stop.wait()
    finally:
        await proxy.stop()
