"""Runs the model server with the real loader; the first module to import jax."""

from __future__ import annotations

import asyncio
import importlib
import os
import traceback
from collections.abc import Sequence

from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader
from model_server.models.registry import check_overrides, model_paths
from model_server.process.health_page import HealthPage
from model_server.process.jax_setup import start_profiler
from model_server.process.server import Hosts, ModelServer
from sax.errors import LoadFailed, ReplicaLost
from sax.host import loop_factory
from sax.tracing import tracer_of


def import_modules(names: Sequence[str]) -> None:
    """Import in order. Raises LoadFailed with the module, the error and its location."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # also a module that calls sys.exit
            raise LoadFailed(f"--import {name}: {_where(exc)}{type(exc).__name__}: {exc}") from exc


def _where(exc: BaseException) -> str:
    """Return file and line of the user's code that failed; "" if none ran."""
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith("<") and "importlib" not in frame.filename
    ][1:]
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""


def serve(
    config: ModelServerConfig, loader: ModelLoader, page: HealthPage, hosts: Hosts | None = None
) -> ReplicaLost | None:
    """Serve until signalled. Returns the error if a host of this replica is lost or hangs.

    Raises OSError for a port that is taken, LoadFailed for a model of the flags.
    """
    start_profiler(config.jax_profiler_port)

    async def start() -> ReplicaLost | None:
        server = ModelServer(
            config,
            loader,
            model_paths=model_paths,
            check_overrides=check_overrides,
            pin_checkpoint=loader.pin,
            compiles_while_serving=loader.compiles_while_serving,
            devices=loader.devices,
            page=page,
            tracer=tracer_of(os.environ, "sax-model-server"),
        )
        return await server.serve_until_signalled(hosts)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(start())
