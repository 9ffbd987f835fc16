"""Runs a role until a signal comes."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import signal

from model_server.pathways.resources.manager import ResourceManager
from model_server.pathways.resources.roster import Roster, parse_instance_type
from model_server.pathways.resources.status_page import IslandsPage
from model_server.pathways.roles import flags as flags_of
from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.roles.proxy import serve_proxy
from sax.errors import Unavailable

logger = logging.getLogger(__name__)


async def serve_manager(flags: PathwaysFlags, stop: asyncio.Event) -> None:
    """Manage resources until told to stop. Raises OSError, InvalidRequest."""
    instance = parse_instance_type(flags.instance_type)
    manager = ResourceManager(Roster(instance, flags.instance_count, flags.lease_s))
    page = IslandsPage(manager)
    try:
        port = await manager.start(f"{flags.host}:{flags.port}", flags.safety)
        logger.info("resource manager of %d islands at port %d", flags.instance_count, port)
        if flags.status_port is not None:
            shown = await page.start("127.0.0.1", flags.status_port)
            logger.info("status page at http://127.0.0.1:%d/", shown)
        await stop.wait()
    finally:
        page.close()
        manager.close()


async def serve_sidecar(flags: PathwaysFlags, stop: asyncio.Event) -> None:
    """Run functions until told to stop. Raises OSError, Unavailable."""
    if importlib.util.find_spec("cloudpickle") is None:
        raise Unavailable("functions come pickled by cloudpickle: pip install sax[pathways]")
    from model_server.pathways.sidecar.listener import SidecarListener  # with jax

    listener = SidecarListener(stop.set)
    try:
        port = await listener.open(f"{flags.host}:{flags.port}", flags.safety)
        logger.info("sidecar at port %d: it runs any code that a client of its worker sends", port)
        await stop.wait()
    finally:
        listener.close()


async def serve(flags: PathwaysFlags) -> None:
    """Be what the flags say until SIGTERM or SIGINT. Raises SaxError, OSError."""
    if flags.told_by:
        logger.info("taken for a %s: there is %s", flags.role, flags.told_by)
    for flag in flags.unused:
        logger.warning("%s is taken and not used: see --help", flag)
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    if flags.role == flags_of.MANAGER:
        await serve_manager(flags, stop)
    elif flags.role == flags_of.PROXY:
        await serve_proxy(flags, stop)
    elif flags.role == flags_of.SIDECAR:
        await serve_sidecar(flags, stop)
    elif flags.role == flags_of.WORKER:
        from model_server.pathways.roles.worker import WorkerProcess  # with jax's parts

        await WorkerProcess(flags, stop).serve()
    else:
        from model_server.pathways.roles.local import serve_local

        await serve_local(flags, stop)
