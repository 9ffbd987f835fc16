"""Runs a role until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import signal

from model_server.pathways.roles import flags as flags_of
from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.roles.manager import serve_manager
from model_server.pathways.roles.proxy import serve_proxy

logger = logging.getLogger(__name__)


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
        from model_server.pathways.roles.sidecar import serve_sidecar  # with jax

        await serve_sidecar(flags, stop)
    elif flags.role == flags_of.WORKER:
        from model_server.pathways.roles.worker import WorkerProcess  # with jax's parts

        await WorkerProcess(flags, stop).serve()
    else:
        from model_server.pathways.roles.local import serve_local

        await serve_local(flags, stop)
