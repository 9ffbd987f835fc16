"""Runs a role of a Pathways deployment.

python -m model_server.pathways --node_type=resource_manager|worker|proxy_server|local ...
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Sequence

from model_server.pathways.resources.manager import ResourceManager
from model_server.pathways.resources.roster import Roster, parse_instance_type
from model_server.pathways.resources.status_page import IslandsPage
from model_server.pathways.roles.flags import (
    LOCAL,
    MANAGER,
    PROXY,
    SIDECAR,
    WORKER,
    PathwaysFlags,
    parse,
)
from model_server.pathways.roles.proxy import serve_proxy
from model_server.process.heap import keep_freed_memory
from sax.distribution import how_to_install
from sax.errors import InvalidRequest, SaxError, Unavailable
from sax.host import loop_factory

logger = logging.getLogger(__name__)

_FAILED, _WRONG = 1, 2


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
        raise Unavailable(f"functions come pickled by cloudpickle: {how_to_install('pathways')}")
    from model_server.pathways.sidecar.listener import SidecarListener  # with jax

    listener = SidecarListener(stop.set)
    try:
        port = await listener.open(f"{flags.host}:{flags.port}", flags.safety)
        logger.info("sidecar at port %d: it runs any code that a client of its worker sends", port)
        await stop.wait()
    finally:
        listener.close()


async def serve(flags: PathwaysFlags) -> None:
    """Serve in the role of the flags until SIGTERM or SIGINT. Raises SaxError, OSError."""
    if flags.told_by:
        logger.info("taken for a %s: there is %s", flags.role, flags.told_by)
    for flag in flags.unused:
        logger.warning("%s is taken and not used: see --help", flag)
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    if flags.role == MANAGER:
        await serve_manager(flags, stop)
    elif flags.role == PROXY:
        await serve_proxy(flags, stop)
    elif flags.role == SIDECAR:
        await serve_sidecar(flags, stop)
    elif flags.role == WORKER:
        from model_server.pathways.roles.worker import WorkerProcess  # with jax's parts

        await WorkerProcess(flags, stop).serve()
    else:
        from model_server.pathways.roles.local import serve_local

        await serve_local(flags, stop)


def main(arguments: Sequence[str]) -> int:
    """Run a role until a signal comes; returns the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        flags = parse(arguments, os.environ)
        if flags.role in (WORKER, LOCAL):
            keep_freed_memory()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(serve(flags))
    except InvalidRequest as error:
        return _say(error.text, _WRONG)
    except SaxError as error:
        return _say(error.text, _FAILED)
    except OSError as error:
        return _say(str(error), _FAILED)
    return 0


def _say(text: str, status: int) -> int:
    sys.stderr.write(f"model_server.pathways: {text}\n")
    return status


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the executor may wait for devices for ever
