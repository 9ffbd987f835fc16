"""Provisioning for an admin server started with --kubernetes.

Checks folder and cluster before anything is served, and makes a provisioner each time this process
leads. Imports the cluster client only when used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from admin_server.cell.cell import Cell
from admin_server.cell.reconciler import Timing
from admin_server.config import AdminConfig
from admin_server.provisioning.provisioner import Provisioner, ProvisioningTiming
from admin_server.provisioning.templates import TemplateFolder


class Machines:
    def __init__(self, config: AdminConfig, timing: ProvisioningTiming | None = None) -> None:
        """Raises InvalidRequest for bad templates, no cluster, or a missing client package."""
        from admin_server.provisioning.kubernetes import connect

        assert config.kubernetes is not None
        self._config = config
        self._timing = timing
        self._folder = TemplateFolder(config.kubernetes)
        connect(config.kubernetes_namespace)  # only checks: opens no connection
        self._connect = connect

    @asynccontextmanager
    async def serving(
        self, cell: Cell, clock: Callable[[], float], timing: Timing | None
    ) -> AsyncGenerator[None]:
        cluster = self._connect(self._config.kubernetes_namespace)

        async def leads() -> bool:
            await cell.ledger.check()
            return not cell.ledger.deposed.is_set()

        cell.provisioner = provisioner = Provisioner(
            self._config.cell,
            cluster,
            self._folder,
            cell.outlook,
            leads,
            cell.reconciler.retire,
            clock,
            limit=self._config.kubernetes_limit,
            events=cell.recent_events,
            timing=self._timing or _slow_enough(timing or Timing()),
        )
        loop = asyncio.create_task(provisioner.run())
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.wait([loop])
            await cluster.close()


def _slow_enough(timing: Timing) -> ProvisioningTiming:
    """Delete nothing before servers had time to find a new leader, or to be dropped as silent."""
    return ProvisioningTiming(settle_s=timing.settle_s + timing.silence_s)
