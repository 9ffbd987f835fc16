"""Models of the flags are loaded by the process itself, which ends if one cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest

from model_server.config import ModelServerConfig
from model_server.process.server import ModelServer
from model_server.serving.servables import Servables
from sax.errors import LoadFailed
from sax.types import ModelSpec, ServableStatus, static_version
from tests.model_server.fake_model import MODEL_PATHS, FakeModels
from tests.model_server.waiting import until


def static(name: str, path: str = "fake") -> ModelSpec:
    spec = ModelSpec(
        model_id=f"/sax/test/{name}", model_path=path, checkpoint=f"/{name}", replicas=1
    )
    return replace(spec, version=static_version(spec))


def make_server(models: FakeModels, *specs: ModelSpec) -> ModelServer:
    config = ModelServerConfig(port=0, metrics_port=-1, sax_cell="", static_models=specs)
    return ModelServer(
        config, models, model_paths=lambda: MODEL_PATHS, compiles_while_serving=lambda: 0
    )


async def loaded(servables: Servables, model_id: str) -> None:
    await until(lambda: any(each.model_id == model_id for each in servables.loaded()))


async def test_they_are_loaded_in_order_without_an_admin_server() -> None:
    models = FakeModels()
    server = make_server(models, static("one"), static("two"))
    serving = asyncio.create_task(server.serve_until_signalled())
    await loaded(server.servables, "/sax/test/two")
    assert models.loads == ["/one", "/two"]
    infos = server.servables.infos()
    assert all(info.status is ServableStatus.LOADED and info.own for info in infos)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving is None


async def test_a_model_that_cannot_be_loaded_ends_the_process_with_the_reason() -> None:
    server = make_server(FakeModels(), static("one"), static("bad", "fake.Truncated"))
    with pytest.raises(LoadFailed, match="--model_keys: /sax/test/bad cannot be loaded: /bad: ten"):
        await server.serve_until_signalled()


async def test_a_signal_ends_the_process_while_they_load() -> None:
    models = FakeModels()
    server = make_server(models, static("slow", "fake.Held"))
    serving = asyncio.create_task(server.serve_until_signalled())
    await until(lambda: bool(server.servables.loading()))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await serving is None
