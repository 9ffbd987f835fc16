"""`python -m tests.tools.chaos.model_server`: a real model server whose models are arithmetic.

Loads take a random while. As long as the file of --broken is there, they fail.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

from model_server.__main__ import leave
from model_server.config import ModelServerConfig
from model_server.loading.loaded_model import LoadedModel
from model_server.process.server import ModelServer
from sax.errors import CheckpointError
from sax.types import ModelSpec, Progress
from tests.model_server.fake_model import FakeModels

_LONGEST_LOAD_S = 0.5


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        "python -m tests.tools.chaos.model_server", description=__doc__
    )
    parser.add_argument("--port", type=int, required=True, help="gRPC port to listen on")
    parser.add_argument("--admin", required=True, help="host:port of every admin server")
    parser.add_argument("--broken", type=Path, required=True, help="loads fail while it is there")
    parser.add_argument("--seed", type=int, default=0, help="of the time that loads take")
    parser.add_argument("--step_s", type=float, default=0.0, help="time that a token takes")
    flags = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(_serve(flags.port, flags.admin, _loader(flags.broken, flags.seed, flags.step_s)))
    leave(0)


async def _serve(
    port: int, admin: str, loader: Callable[[ModelSpec, Callable[[Progress], None]], LoadedModel]
) -> None:
    config = ModelServerConfig(port=port, metrics_port=-1, admin=admin, drain_seconds=0.1)
    server = ModelServer(
        config, loader, model_paths=lambda: ("fake",), compiles_while_serving=lambda: 0
    )
    await server.serve_until_signalled()


def _loader(
    broken: Path, seed: int, step_s: float
) -> Callable[[ModelSpec, Callable[[Progress], None]], LoadedModel]:
    luck, models = random.Random(seed), FakeModels(delay_s=step_s)

    def load(spec: ModelSpec, report: Callable[[Progress], None]) -> LoadedModel:
        time.sleep(luck.uniform(0, _LONGEST_LOAD_S))
        if broken.exists():
            raise CheckpointError(f"{spec.checkpoint}: the disk is away for a while")
        return models(spec, report)

    return load


if __name__ == "__main__":
    main()
