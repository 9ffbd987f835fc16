"""A model server whose device hangs: arithmetic models of which only so many steps ever finish.

`python -m tests.model_server.hanging_model` runs it as a process on a free port.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from model_server.__main__ import leave
from model_server.config import HUNG, ModelServerConfig
from model_server.loading.loaded import Loaded
from model_server.loading.loaded_model import LoadedModel
from model_server.loading.memory_plan import Devices
from model_server.process.health_page import HealthPage
from model_server.process.start import serve
from sax.types import ModelSpec
from tests.model_server.fake_model import FakeModels

STEPS, LIMIT_S = 3, 1.0


class HangingModels(FakeModels):
    """The loader: step STEPS + 1 of each model never finishes."""

    def __init__(self) -> None:
        super().__init__(gate=threading.Semaphore(STEPS))

    def __call__(self, spec: ModelSpec, report: object) -> LoadedModel:
        loaded = super().__call__(spec, lambda progress: None)
        assert isinstance(loaded, Loaded)
        return replace(loaded, step_limit_s=LIMIT_S)

    def compiles_while_serving(self) -> int:
        return 0

    def pin(self, checkpoint: str) -> str:
        return checkpoint

    def devices(self) -> Devices:
        return Devices(1, 1 << 30)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    config = ModelServerConfig(port=0, metrics_port=-1, sax_cell="", drain_seconds=20)
    lost = serve(config, HangingModels(), HealthPage())  # pyright: ignore[reportArgumentType]
    leave(HUNG if lost else 0)
