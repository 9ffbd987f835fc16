"""Former names of `Deployment`, for model_server/plan; delete once that uses the value itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.step_program import StepProgram
from model_server.engine.types import EngineLimits
from model_server.kernels.pages import CacheShape
from model_server.loading.deployment import PREFILL_BLOCKS, Deployment, PlacedModel
from model_server.loading.device_memory import device_limit, free_memory, layout_for
from model_server.loading.memory_plan import FreeMemory, MemoryPlan
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout
from model_server.models.weights.weight import Blueprint

__all__ = ["layout_for"]

_NO_MEMORY = MemoryPlan(0, 0, 0)


def plan_capacity(
    recipe: Recipe,
    module: Blueprint,
    layout: Layout,
    config: ModelServerConfig,
    in_use: int,
    own: Sequence[Any] | None = None,
) -> tuple[EngineLimits, MemoryPlan]:
    placed = layout if isinstance(layout.mesh, Mesh) else layout.placed()
    memory = FreeMemory(device_limit(own, config), in_use) if own else None
    deployment = PlacedModel(recipe, module, placed).deploy(
        config, memory or free_memory(placed, config, in_use)
    )
    return deployment.limits, deployment.memory


def least_bytes(
    recipe: Recipe, module: Blueprint, layout: Layout, config: ModelServerConfig
) -> int:
    return PlacedModel(recipe, module, layout).least_bytes(config)


def weight_bytes(module: Blueprint, layout: Layout) -> int:
    recipe: Any = None
    return PlacedModel(recipe, module, layout).weight_bytes


def cache_of(recipe: Recipe, layout: Layout) -> CacheShape:
    return recipe.cache(layout.shards("heads"))


def buckets_of(limits: EngineLimits) -> tuple[Bucket, ...]:
    return closed_set(limits.slots, PREFILL_BLOCKS)


def step_program(
    recipe: Recipe, blueprint: Blueprint, limits: EngineLimits, layout: Layout
) -> StepProgram:
    return Deployment(recipe, blueprint, layout, limits, _NO_MEMORY).program
