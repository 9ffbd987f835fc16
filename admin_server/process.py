"""One admin server process: listen, follow or lead, stop.

Starts in the one correct order (a leader must be reachable before it says so) and stops in reverse.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from admin_server.api.server import AdminServer
from admin_server.api.status_page import StatusServer, build_app
from admin_server.cell.cell import Cell
from admin_server.cell.modelets import GrpcModelets
from admin_server.cell.reconciler import Timing
from admin_server.config import NO_STATUS_PAGE, AdminConfig
from admin_server.leadership import AdminRole, Leadership, LeadTiming
from admin_server.ledger.ledger import Ledger
from admin_server.storage.store_check import StoreHealth, check_creates_once
from admin_server.storage.store_mark import StoreMark
from sax.auth.credentials import Credentials
from sax.auth.security import CLOSING_FLAGS
from sax.client.location import LOCATION, location_folder
from sax.errors import SaxError
from sax.host import is_loopback, open_warning
from sax.names import CellId
from sax.proto import admin_pb2
from sax.storage.durable_file import SHARED
from sax.storage.object_store import ObjectStore, open_store
from sax.types import ModelSpec, ServerInfo

if TYPE_CHECKING:
    from admin_server.machines import Machines
    from admin_server.provisioning.provisioner import ProvisioningTiming

_log = logging.getLogger(__name__)
_GRACE_S = 2.0
_LOCATION_S = 2.0
_LOCATION_RETRY_S = 2.0


@dataclass(frozen=True, slots=True)
class Running:
    role: AdminRole
    port: int
    status_port: int | None
    life: asyncio.Task[None]  # ends only if it fails

    @property
    def cell(self) -> Cell:
        return self.role.require()


class Clock:
    """Seconds since the epoch that never jump: setting the clock makes no server look silent."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


@asynccontextmanager
async def running(
    config: AdminConfig,
    timing: Timing | None = None,
    lead: LeadTiming | None = None,
    provisioning: ProvisioningTiming | None = None,
) -> AsyncGenerator[Running]:
    """Run an admin server from its first role to its graceful stop. Raises SaxError."""
    clock = Clock()
    machines = _machines(config, provisioning)
    role = AdminRole(config.cell, StoreHealth(clock))
    store = open_store(config.fs_root, config.store_timeout_s)
    async with AsyncExitStack() as stack:
        status_port = await _start_status_page(config, role, clock, stack)
        server = AdminServer(role, config.security)
        tell_of_security(config)
        port = await server.start(config.host, config.port)
        stack.push_async_callback(server.stop, _GRACE_S)
        telling = asyncio.create_task(server.tell_health())
        stack.push_async_callback(_cancel, telling)
        address = f"{config.advertised_host}:{port}"
        leadership = Leadership(
            role,
            store,
            address,
            clock,
            _LedgerOpener(config, store, role.health).open,
            _Led(config, address, clock, timing, machines).start,
            timing=lead or LeadTiming(beat_s=config.beat_s, patience_s=3 * config.beat_s),
        )
        life = asyncio.create_task(leadership.run())
        stack.push_async_callback(_cancel, life)
        await _first_role(role, life)
        _log.info("admin server of %s listening on %s:%d", config.cell, config.host, port)
        yield Running(role, port, status_port, life)


def _machines(config: AdminConfig, timing: ProvisioningTiming | None) -> Machines | None:
    """None, without importing anything, unless --kubernetes is set."""
    if config.kubernetes is None:
        return None

    from admin_server.machines import Machines

    return Machines(config, timing)


async def serve(config: AdminConfig, stop: asyncio.Event) -> None:
    """Run until `stop` is set. Raises whatever ended the leadership or the reconciler."""
    async with running(config) as admin:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, admin.life}, return_when=asyncio.FIRST_COMPLETED)
        await _cancel(stopping)
        if admin.life.done():
            await admin.life
        _log.info("stopping: calls in progress have %g s to finish", _GRACE_S)


class _LedgerOpener:
    """Opens the ledger as often as needed; checks the store only once."""

    def __init__(self, config: AdminConfig, store: ObjectStore, health: StoreHealth) -> None:
        self._config = config
        self._store = store
        self._health = health
        self._trusted = False
        self._mark = StoreMark(store, config.cell)

    async def open(self) -> Ledger:
        """Raises InvalidRequest for an untrustworthy store, CorruptLog, StoreUnavailable."""
        config = self._config
        if not self._trusted:
            await check_creates_once(self._store, config.cell)
            self._trusted = True
        return await Ledger.open(
            self._store,
            config.cell,
            snapshot_every=config.snapshot_every,
            health=self._health,
            patience_s=config.store_timeout_s,
            mark=self._mark,
        )


class _Led:
    """Everything this process runs while it leads."""

    def __init__(
        self,
        config: AdminConfig,
        address: str,
        clock: Clock,
        timing: Timing | None,
        machines: Machines | None,
    ) -> None:
        self._config = config
        self._address = address
        self._clock = clock
        self._timing = timing
        self._machines = machines

    @asynccontextmanager
    async def start(
        self, ledger: Ledger, term: int, servers: Sequence[ServerInfo] | None
    ) -> AsyncGenerator[Cell]:
        """Run a reconciled cell. Raises whatever ended the reconciler."""
        _log.info(
            "restored %d models of %s at record %d",
            len(ledger.state.models),
            self._config.cell,
            ledger.sequence,
        )
        tell_of_lists(self._config, ledger.state.models.values())
        modelets = GrpcModelets(term)
        cell = Cell(
            ledger,
            modelets,
            self._clock,
            timing=self._timing,
            scaling=self._config.scaling,
            servers=servers,
        )
        loop = asyncio.create_task(cell.reconciler.run())
        # Step down: a cell without a reconciler must not look as if it were led.
        loop.add_done_callback(lambda task: ledger.deposed.set())
        location = asyncio.create_task(self._tell_location())
        try:
            # Clients find the leader there, but a slow store must not delay leading.
            await asyncio.wait([location], timeout=_LOCATION_S)
            async with self._provisioning(cell):
                yield cell
        finally:
            await _cancel(location)
            await _cancel(loop)
            await cell.disputes.close()
            await cell.reconciler.close()
        if not loop.cancelled():
            loop.result()

    def _provisioning(self, cell: Cell) -> AbstractAsyncContextManager[None]:
        return (
            self._machines.serving(cell, self._clock, self._timing)
            if self._machines
            else nullcontext()
        )

    async def _tell_location(self) -> None:
        """Retry until written: clients that look there would keep asking the previous leader."""
        root = self._config.sax_root
        while root is not None:
            try:
                return await write_location(root, self._config.cell, self._address)
            except SaxError as exc:
                _log.error("clients cannot find this leader below %s: %s", root, exc.text)
                await asyncio.sleep(_LOCATION_RETRY_S)


async def _first_role(role: AdminRole, life: asyncio.Task[None]) -> None:
    """Wait until this server leads, follows, or waits for a failing store. Raises what ended it."""
    settled = asyncio.create_task(role.settled.wait())
    await asyncio.wait({settled, life}, return_when=asyncio.FIRST_COMPLETED)
    await _cancel(settled)
    if life.done():
        await life


def tell_of_security(config: AdminConfig) -> None:
    """Warn about open access, and about model servers that will refuse this admin server."""
    closed = config.security.authenticates
    if warning := open_warning(
        config.host,
        closed=closed,
        offers="publish, change and unpublish every model of this cell",
        remedy=f"start it with {CLOSING_FLAGS}, or with --host 127.0.0.1",
    ):
        _log.warning("%s", warning)
    if closed and config.status_port != NO_STATUS_PAGE and not is_loopback(config.host):
        _log.warning(
            "the status page and metrics are open to everyone: whoever reaches port %d can list "
            "models and servers; --status_port -1 closes it",
            config.status_port,
        )
    if closed and not Credentials.ours().given:
        _log.warning(
            "this admin server has no credentials for model servers, and those that authenticate "
            "callers will refuse it: set SAX_TOKEN, SAX_TOKEN_FILE or SAX_TLS_CERT to those of a "
            "principal in their --admin_acl"
        )


def tell_of_lists(config: AdminConfig, models: Iterable[ModelSpec]) -> None:
    """Warn about models whose access control lists are not enforced."""
    guarded = [spec.model_id for spec in models if any(spec.acls.values())]
    if guarded and not config.security.authenticates:
        _log.warning(
            "the access control lists of %s are not enforced here: this admin server was started "
            "without --tokens and --tls_ca",
            ", ".join(sorted(guarded)),
        )


async def write_location(root: str, cell: CellId, address: str) -> None:
    """Write this cell's admin server address below the root, as Saxml does.

    Raises InvalidRequest naming sax_root, StoreUnavailable.
    """
    text = admin_pb2.Location(location=address).SerializeToString()
    # Clients of other users read it.
    folder = f"{root.rstrip('/')}/{location_folder(cell.cell)}"
    store = open_store(folder, param="sax_root", mode=SHARED)
    await store.replace(LOCATION, text)


async def _start_status_page(
    config: AdminConfig, role: AdminRole, clock: Clock, stack: AsyncExitStack
) -> int | None:
    if config.status_port == NO_STATUS_PAGE:
        return None
    page = StatusServer(build_app(role, clock, config.host), config.host, config.status_port)
    task = asyncio.create_task(page.run_until_stopped())

    async def stop() -> None:
        page.stop()
        await task

    stack.push_async_callback(stop)
    _log.info("status page on http://%s:%d/", config.host, page.port)
    return page.port


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
