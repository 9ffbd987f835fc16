"""The role worker: one process of an island."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from typing import Any

from model_server.islands.weight_reading import ATTRIBUTE
from model_server.pathways.hosting.door import WorkerDoor
from model_server.pathways.hosting.executor_thread import ExecutorThread
from model_server.pathways.hosting.parcels import ParcelRoom
from model_server.pathways.link.safety import is_loopback
from model_server.pathways.resources import messages
from model_server.pathways.resources.calling import ManagerLink
from model_server.pathways.roles.compiling import check_options, configure
from model_server.pathways.roles.flags import PathwaysFlags
from sax.errors import InvalidRequest, Unavailable
from sax.host import xla_threads

logger = logging.getLogger(__name__)


class WorkerProcess:
    """Enrols, starts as what the resource manager says, and serves. Belongs to the event loop."""

    def __init__(self, flags: PathwaysFlags, stop: asyncio.Event) -> None:
        self._flags = flags
        self._stop = stop
        self._incarnation = uuid.uuid4().hex
        self._port = flags.port or _free_port(flags.host)
        self._coordinator = _free_port(flags.host) if flags.island_hosts > 1 else 0
        self._placement: messages.IslandPlacement | None = None
        self._starting: asyncio.Task[None] | None = None
        self._door: WorkerDoor | None = None
        self._thread: ExecutorThread | None = None
        self._parcels: ParcelRoom | None = None
        self._devices = 0
        self._failed: BaseException | None = None
        self._link = ManagerLink(flags.manager, flags.safety, self._enrolment, self._received)

    async def serve(self) -> None:
        """Serve until told to stop. Raises InvalidRequest if turned away, Unavailable, OSError."""
        linking = asyncio.create_task(self._link.run())
        try:
            await self._stop.wait()
        finally:
            linking.cancel()
            self._close()
        if self._failed is not None:
            raise self._failed

    def _close(self) -> None:
        if self._door is not None:
            self._door.close()
        if self._parcels is not None:
            self._parcels.close()
        if self._thread is not None:
            self._thread.close()

    @property
    def _reached_at(self) -> str:
        """Host name or address where others reach this process."""
        if self._flags.advertised:
            return self._flags.advertised
        return "127.0.0.1" if is_loopback(self._flags.host) else socket.gethostname()

    def _enrolment(self) -> messages.Message:
        placed, flags = self._placement, self._flags
        island = placed.island if placed else flags.island
        return messages.Enrol(
            self._incarnation,
            f"{self._reached_at}:{self._port}",
            messages.ANY if island is None else island,
            flags.island_host,
            flags.island_hosts,
            f"{self._reached_at}:{self._coordinator}",
            placed is not None,
        )

    def _received(self, message: messages.Message) -> None:
        match message:
            case messages.IslandPlacement():
                self._place(message)
            case messages.Missing(text):
                logger.info("waiting with the resource manager for %s", text)
            case messages.TurnedAway(reason):
                self._end(InvalidRequest(f"turned away by the resource manager: {reason}"))
            case _:
                logger.warning("an unknown word of the resource manager: %s", message)

    def _place(self, placement: messages.IslandPlacement) -> None:
        if self._placement is None:
            self._placement = placement
            self._starting = asyncio.create_task(self._start(placement))
        elif placement.first_device != self._placement.first_device:
            self._end(Unavailable("the resource manager numbers devices otherwise: start again"))
        elif self._door is not None:
            self._link.send(messages.Ready(self._devices))

    def _end(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._stop.set()

    async def _start(self, placement: messages.IslandPlacement) -> None:
        """Start jax and open the door."""
        try:
            loop = asyncio.get_running_loop()
            executor = await asyncio.to_thread(_executor, self._flags, placement, loop)
            self._thread = ExecutorThread(executor)
            self._parcels = ParcelRoom(self._thread, self._flags.safety)
            self._door = WorkerDoor(self._thread, self._parcels, self._incarnation)
            await self._door.open(f"{self._flags.host}:{self._port}", self._flags.safety)
        except Exception as exc:
            logger.exception("the worker cannot start")
            self._link.send(messages.Trouble(f"cannot start: {exc}"))
            self._end(exc)
            return
        self._devices = _local_devices()
        self._link.send(messages.Ready(self._devices))
        logger.info("island %d, host %d: up", placement.island, self._flags.island_host)


def _executor(
    flags: PathwaysFlags, placement: messages.IslandPlacement, loop: asyncio.AbstractEventLoop
) -> Any:
    """Start jax as one process of the island and return its executor."""
    if placement.devices > 1 or flags.island_hosts > 1:
        os.environ.setdefault("NPROC", str(xla_threads(placement.devices)))
    import jax  # a worker learns how to start it only now

    from model_server.pathways.worker.devices import IslandDevices
    from model_server.pathways.worker.executor import Executor

    configure(jax.config, flags)
    if placement.platform == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", placement.devices)
    if flags.island_hosts > 1:
        jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM
        if placement.platform == "cpu":
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(placement.coordinator, flags.island_hosts, flags.island_host)
    devices = IslandDevices(
        jax.devices(),
        placement.first_device,
        placement.island,
        flags.memory_limit_bytes,
        {ATTRIBUTE: int(bool(flags.checkpoint_roots))},
    )
    check_options(flags)
    return Executor(
        devices, flags.compile_options, reader_of(flags), _functions(flags, devices, loop)
    )


def reader_of(flags: PathwaysFlags) -> Any:
    """Return what reads weights for clients; None: nothing does."""
    if not flags.checkpoint_roots:
        return None
    from model_server.loading.beside_devices.weight_reader import WeightReader  # with all models

    return WeightReader(flags.checkpoint_roots)


def _functions(flags: PathwaysFlags, devices: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Return what runs functions of clients; None: nothing does."""
    if not flags.sidecar:
        return None
    from model_server.pathways.sidecar.island_functions import IslandFunctions, place_of
    from model_server.pathways.sidecar.link import SidecarLink

    link = SidecarLink(flags.sidecar, flags.safety, place_of(devices), loop)
    return IslandFunctions(link, devices)


def _local_devices() -> int:
    import jax

    return jax.local_device_count()


def _free_port(host: str) -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]
