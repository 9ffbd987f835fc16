"""The role resource_manager."""

from __future__ import annotations

import asyncio
import logging

from model_server.pathways.resources.instance_type import parse_instance_type
from model_server.pathways.resources.manager import ResourceManager
from model_server.pathways.resources.roster import Roster
from model_server.pathways.resources.status_page import IslandsPage
from model_server.pathways.roles.flags import PathwaysFlags

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
