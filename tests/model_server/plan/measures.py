"""Deployments on slices, and measurements of buckets that no compiler made."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.loading.deployment import Deployment, deploy
from model_server.plan.compiled import Measured
from model_server.plan.hlo.traffic import HbmBytes, StepTraffic
from model_server.plan.model import open_model
from model_server.plan.topology import topology_of

NO_TRAFFIC = StepTraffic(HbmBytes(0, 0, 0, 0), {}, 0)


def measured(bucket: Bucket, **changes: Any) -> Measured:
    """Numbers that nothing follows from but what the test puts there."""
    values: dict[str, Any] = {
        "arguments": 1000,
        "temporaries": 100,
        "outputs": 10,
        "code": 1,
        "flops": 0.0,
        "traffic": NO_TRAFFIC,
        "lower_seconds": 0.0,
        "compile_seconds": 1.0,
        "read_seconds": 0.0,
    }
    return Measured(bucket=bucket, **(values | changes))


def deployed(
    name: str, topology: str, overrides: dict[str, str], config: ModelServerConfig | None = None
) -> Deployment:
    """Deploy a publish as a server of this slice would."""
    return _deployed(name, topology, tuple(overrides.items()), config or ModelServerConfig())


@lru_cache(8)  # several tests look at the same
def _deployed(
    name: str, topology: str, overrides: tuple[tuple[str, str], ...], config: ModelServerConfig
) -> Deployment:
    where = topology_of(topology)
    with open_model(name) as model:
        recipe = model.recipe(dict(overrides))
        layout, memory = where.layout(recipe), where.memory(config)
        return deploy(recipe, model.checkpoint, layout, config, memory)
