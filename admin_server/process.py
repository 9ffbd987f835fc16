"""One admin server process: restore, serve, stop.

Starts in the one right order (the state is there before anyone is answered) and ends in the
reverse one. Knows nothing of flags.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from admin_server.cell import Cell
from admin_server.config import NO_STATUS_PAGE, AdminConfig
from admin_server.durable_file import prepare_folder, replace_file
from admin_server.ledger import Ledger
from admin_server.modelets import GrpcModelets
from admin_server.object_store import open_store
from admin_server.reconciler import Timing
from admin_server.server import AdminServer
from admin_server.status_page import StatusServer, build_app
from sax.config import location_path
from sax.credentials import Credentials
from sax.errors import InvalidRequest
from sax.exposure import is_loopback, open_warning
from sax.names import CellId
from sax.proto import admin_pb2
from sax.security import CLOSING_FLAGS

_log = logging.getLogger(__name__)
_GRACE_S = 2.0


class SteppedDown(Exception):
    """Another admin server leads the cell now."""


@dataclass(frozen=True, slots=True)
class Running:
    """An admin server that answers."""

    cell: Cell
    port: int
    status_port: int | None
    loop: asyncio.Task[None]  # ends only if it fails


class Clock:
    """Seconds since the epoch that never jump: no server falls silent because a clock was set."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._offset + time.monotonic()


@asynccontextmanager
async def running(config: AdminConfig, timing: Timing | None = None) -> AsyncGenerator[Running]:
    """An admin server from restored state to graceful stop.

    Raises SaxError when it cannot start, SteppedDown when another admin server takes over.
    """
    clock = Clock()
    store = open_store(config.fs_root)
    ledger = await Ledger.open(store, config.cell, snapshot_every=config.snapshot_every)
    _log.info(
        "restored %d models of %s at record %d",
        len(ledger.state.models),
        config.cell,
        ledger.sequence,
    )
    cell = Cell(ledger, GrpcModelets(), clock, timing=timing)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(ledger.close)
        stack.push_async_callback(cell.reconciler.close)
        status_port = await _start_status_page(config, cell, clock, stack)
        server = AdminServer(cell, config.security)
        tell_of_security(config, cell)
        port = await server.start(config.host, config.port)
        stack.push_async_callback(server.stop, _GRACE_S)
        loop = asyncio.create_task(cell.reconciler.run())
        stack.push_async_callback(_cancel, loop)
        if config.sax_root is not None:
            await write_location(config.sax_root, config.cell, f"{config.advertised_host}:{port}")
        _log.info("admin server of %s listening on %s:%d", config.cell, config.host, port)
        yield Running(cell, port, status_port, loop)


async def serve(config: AdminConfig, stop: asyncio.Event) -> None:
    """Run until told to stop. Raises SteppedDown, or whatever ended the reconciler."""
    async with running(config) as admin:
        stopping = asyncio.create_task(stop.wait())
        deposed = asyncio.create_task(admin.cell.ledger.deposed.wait())
        await asyncio.wait({stopping, deposed, admin.loop}, return_when=asyncio.FIRST_COMPLETED)
        await _cancel(stopping)
        await _cancel(deposed)
        if admin.cell.ledger.deposed.is_set():
            raise SteppedDown(f"another admin server leads {config.cell} now")
        if admin.loop.done():
            await admin.loop
        _log.info("stopping: calls under way get %g s to end", _GRACE_S)


def tell_of_security(config: AdminConfig, cell: Cell) -> None:
    """Log what stands open, and what will be refused elsewhere because of what is missing here."""
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
            "the status page and the metrics ask nobody who they are: whoever reaches port %d sees "
            "which models and servers there are; --status_port -1 closes it",
            config.status_port,
        )
    if closed and not Credentials.ours().given:
        _log.warning(
            "this admin server has nothing to show to model servers, and those that ask who calls "
            "will refuse it: set SAX_TOKEN, SAX_TOKEN_FILE or SAX_TLS_CERT to what their "
            "--admin_acl names"
        )
    guarded = [
        spec.model_id for spec in cell.ledger.state.models.values() if any(spec.acls.values())
    ]
    if guarded and not closed:
        _log.warning(
            "the access control lists of %s are not enforced here: this admin server was started "
            "without --tokens and --tls_ca",
            ", ".join(sorted(guarded)),
        )


async def write_location(root: str, cell: CellId, address: str) -> None:
    """Tell, below the root, where this cell's admin server is, as Saxml does."""
    path = location_path(root, cell.cell)
    text = admin_pb2.Location(location=address).SerializeToString()
    try:
        await asyncio.to_thread(prepare_folder, path.parent)
        await asyncio.to_thread(replace_file, path.parent, path, text)
    except OSError as exc:
        raise InvalidRequest(
            f"cannot write {path} ({exc.strerror}): give a --sax_root that can be written",
            param="sax_root",
        ) from exc


async def _start_status_page(
    config: AdminConfig, cell: Cell, clock: Clock, stack: AsyncExitStack
) -> int | None:
    if config.status_port == NO_STATUS_PAGE:
        return None
    page = StatusServer(build_app(cell, clock), config.host, config.status_port)
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
