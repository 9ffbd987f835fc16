"""The role sidecar: runs functions of clients beside one worker."""

from __future__ import annotations

import asyncio
import importlib.util
import logging

from model_server.pathways.roles.flags import PathwaysFlags
from model_server.pathways.sidecar.door import SidecarDoor
from sax.errors import Unavailable

logger = logging.getLogger(__name__)


async def serve_sidecar(flags: PathwaysFlags, stop: asyncio.Event) -> None:
    """Run functions until told to stop. Raises OSError, Unavailable."""
    if importlib.util.find_spec("cloudpickle") is None:
        raise Unavailable("functions come pickled by cloudpickle: pip install sax[pathways]")
    door = SidecarDoor(stop.set)
    try:
        port = await door.open(f"{flags.host}:{flags.port}", flags.safety)
        logger.info("sidecar at port %d: it runs any code that a client of its worker sends", port)
        await stop.wait()
    finally:
        door.close()
