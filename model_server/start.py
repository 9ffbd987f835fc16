"""Runs the model server with the real loader; the first module to import jax."""

from __future__ import annotations

import asyncio

from model_server.config import ModelServerConfig
from model_server.health_page import HealthPage
from model_server.imports import import_modules
from model_server.loading import ModelLoader, make_loader
from model_server.models.registry import model_paths
from model_server.process import Hosts, ModelServer
from sax.errors import ReplicaLost
from sax.event_loop import loop_factory


def prepare(config: ModelServerConfig) -> ModelLoader:
    """Import user modules and return the loader. Raises what an imported module raises."""
    import_modules(config.imports)  # first, so that their errors show at once
    return make_loader(config)


def serve(
    config: ModelServerConfig, loader: ModelLoader, page: HealthPage, hosts: Hosts | None = None
) -> ReplicaLost | None:
    """Serve until signalled. Returns the error if a host of this replica is lost."""

    async def start() -> ReplicaLost | None:
        server = ModelServer(
            config,
            loader,
            model_paths=model_paths,
            compiles_while_serving=loader.compiles_while_serving,
            devices=loader.devices,
            page=page,
        )
        return await server.serve_until_signalled(hosts)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(start())
