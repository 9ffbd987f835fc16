"""The role worker: one process of an island, which executes requests of proxy servers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import uuid
from collections import defaultdict
from typing import Any

import jax
import msgspec

from model_server.loading.beside_devices.weight_reading import ATTRIBUTE
from model_server.pathways.link import messages as link_messages
from model_server.pathways.link.connection import Connection, Listener
from model_server.pathways.resources import messages
from model_server.pathways.resources.calling import ManagerLink
from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.scheduling.answers import IslandRequest, Reply
from model_server.pathways.scheduling.handles import Fault
from model_server.pathways.scheduling.options import typed
from model_server.pathways.worker.devices import IslandDevices
from model_server.pathways.worker.executor import Executor
from model_server.pathways.worker.executor_thread import ExecutorThread
from model_server.pathways.worker.transfers import ArrayTransfers
from sax.errors import InvalidRequest, Unavailable
from sax.host import is_loopback, xla_threads

logger = logging.getLogger(__name__)

Peer = Connection[link_messages.Message]


class WorkerListener(Listener[link_messages.Message]):
    """Proxy servers connect here to have requests executed, other workers to send arrays."""

    def __init__(self, thread: ExecutorThread, transfers: ArrayTransfers, incarnation: str) -> None:
        """incarnation: of this process."""
        super().__init__(link_messages.DECODER)
        self._thread = thread
        self._transfers = transfers
        self._incarnation = incarnation
        self._description: bytes = thread.executor.describe().SerializeToString()
        # Session numbers here, by connection: a proxy server that comes back, after this process
        # stood still or was cut off, starts anew, while its sessions before are still being freed.
        self._sessions: defaultdict[Peer, dict[int, int]] = defaultdict(dict)
        self._count = itertools.count(1)

    def received(self, peer: Peer, message: link_messages.Message, body: memoryview) -> None:
        match message:
            case link_messages.RunRequest():
                self._run(peer, message, body)
            case link_messages.Forget(session):
                self._forget(self._sessions[peer].pop(session, None))
            case link_messages.Ship(session, transfer=transfer):
                here = msgspec.structs.replace(message, session=self._session(peer, session))
                self._transfers.ship(here, lambda fault: _answer_shipped(peer, transfer, fault))
            case link_messages.Expect(session, transfer=transfer):
                here = msgspec.structs.replace(message, session=self._session(peer, session))
                self._transfers.expect(here, lambda: peer.send(link_messages.Arrived(transfer)))
            case link_messages.TransferHead():
                self._transfers.arrived(message, body)
            case link_messages.Hail(incarnation):
                self._greet(peer, incarnation)
            case _:
                peer.close()

    def ended(self, peer: Peer) -> None:
        """Free the sessions of a proxy server that is gone."""
        super().ended(peer)
        for session in self._sessions.pop(peer, {}).values():
            self._forget(session)

    def _greet(self, peer: Peer, incarnation: str) -> None:
        """Describe the devices to a proxy server, unless it means an earlier process here."""
        if incarnation != self._incarnation:
            logger.warning(
                "a proxy server at %s expects another worker: its connection is closed", peer.peer
            )
            peer.close()
            return
        peer.send(link_messages.Described(self._incarnation), (self._description,))

    def _run(self, peer: Peer, run: link_messages.RunRequest, body: memoryview) -> None:
        session = self._session(peer, run.session)
        buffers = link_messages.cut(body, run.request, run.buffers)
        request = IslandRequest(session, run.made, bytes(body[: run.request]), buffers)

        def answered(reply: Reply) -> None:
            sizes = [(handle, len(data)) for handle, data in reply.buffers.items()]
            response = link_messages.RunResponse(run.number, len(reply.response), sizes)
            peer.send(response, (reply.response, *reply.buffers.values()))

        self._thread.run(request, answered)

    def _session(self, peer: Peer, session: int) -> int:
        """Return the number under which a session of a proxy server is kept here."""
        sessions = self._sessions[peer]
        if session not in sessions:
            sessions[session] = next(self._count)
        return sessions[session]

    def _forget(self, session: int | None) -> None:
        if session is not None:
            self._transfers.forget(session)
            self._thread.forget(session)


def _answer_shipped(peer: Peer, transfer: int, fault: Fault | None) -> None:
    peer.send(link_messages.Shipped(transfer, *(fault or (0, ""))))


class WorkerProcess:
    """Enrols, starts jax as the resource manager says, and serves. Belongs to the event loop."""

    def __init__(self, flags: PathwaysFlags, stop: asyncio.Event) -> None:
        self._flags = flags
        self._stop = stop
        self._incarnation = uuid.uuid4().hex
        self._port = flags.port or _free_port(flags.host)
        self._coordinator = _free_port(flags.host) if flags.island_hosts > 1 else 0
        self._placement: messages.IslandPlacement | None = None
        self._starting: asyncio.Task[None] | None = None
        self._listener: WorkerListener | None = None
        self._thread: ExecutorThread | None = None
        self._transfers: ArrayTransfers | None = None
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
        if self._listener is not None:
            self._listener.close()
        if self._transfers is not None:
            self._transfers.close()
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
                logger.warning("an unknown message of the resource manager: %s", message)

    def _place(self, placement: messages.IslandPlacement) -> None:
        if self._placement is None:
            self._placement = placement
            self._starting = asyncio.create_task(self._start(placement))
        elif placement.first_device != self._placement.first_device:
            self._end(Unavailable("the resource manager numbers devices otherwise: start again"))
        elif self._listener is not None:
            self._link.send(messages.Ready(self._devices))

    def _end(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._stop.set()

    async def _start(self, placement: messages.IslandPlacement) -> None:
        """Start jax and open the listener."""
        try:
            loop = asyncio.get_running_loop()
            executor = await asyncio.to_thread(executor_of, self._flags, placement, loop)
            self._thread = ExecutorThread(executor)
            self._transfers = ArrayTransfers(self._thread, self._flags.safety)
            self._listener = WorkerListener(self._thread, self._transfers, self._incarnation)
            await self._listener.open(f"{self._flags.host}:{self._port}", self._flags.safety)
        except Exception as exc:
            logger.exception("the worker cannot start")
            self._link.send(messages.Trouble(f"cannot start: {exc}"))
            self._end(exc)
            return
        self._devices = jax.local_device_count()
        self._link.send(messages.Ready(self._devices))
        logger.info("island %d, host %d: up", placement.island, self._flags.island_host)


def executor_of(
    flags: PathwaysFlags, placement: messages.IslandPlacement, loop: asyncio.AbstractEventLoop
) -> Executor:
    """Start jax as one process of the island and return its executor."""
    if placement.devices > 1 or flags.island_hosts > 1:
        os.environ.setdefault("NPROC", str(xla_threads(placement.devices)))
    # Every program goes to jax's cache, if it has a folder: the small ones add up in a load.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
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
    _check_options(flags)
    return Executor(
        devices, flags.compile_options, _reader(flags), _functions(flags, devices, loop)
    )


def _reader(flags: PathwaysFlags) -> Any:
    """Return the reader of weights for clients; None without --checkpoint_root."""
    if not flags.checkpoint_roots:
        return None
    from model_server.loading.beside_devices.weight_reader import WeightReader  # with all models

    return WeightReader(flags.checkpoint_roots)


def _functions(flags: PathwaysFlags, devices: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """Return the runner of clients' functions; None without --sidecar_address."""
    if not flags.sidecar:
        return None
    from model_server.pathways.sidecar.island_functions import (
        IslandFunctions,
        SidecarLink,
        place_of,
    )

    link = SidecarLink(flags.sidecar, flags.safety, place_of(devices), loop)
    return IslandFunctions(link, devices)


def _free_port(host: str) -> int:
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


def _check_options(flags: PathwaysFlags) -> None:
    """Compile a small program with the `--xla_` flags. Raises InvalidRequest with XLA's reason."""
    if not flags.compile_options:
        return
    options: dict[str, Any] = {name: typed(value) for name, value in flags.compile_options.items()}
    try:
        jax.jit(lambda x: x + 1).lower(1).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as exc:
        told = ", ".join(f"--{name}={value}" for name, value in flags.compile_options.items())
        raise InvalidRequest(f"the compiler does not take {told}: {exc}") from exc
