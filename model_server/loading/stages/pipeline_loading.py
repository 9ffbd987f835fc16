"""Plan and load one host's pipeline stage: shared limits, its own weights, its programs.

Starts no program that talks to another host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import COMPILED_HERE, Programs
from model_server.engine.limits import EngineLimits
from model_server.engine.running.adapters import AdapterFiles
from model_server.engine.running.runner import ModelRunner
from model_server.loading.deployment import Deployment, deploy
from model_server.loading.device_memory import free_memory
from model_server.loading.lm_loading import compile_or_close, read_leaves, read_parts
from model_server.loading.stages.pipeline import PipelineRunner, StageThread
from model_server.loading.stages.place import StagePlace
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout, layout_of
from model_server.multihost.link import Link
from sax.errors import MemoryPlanError
from sax.types import Progress

Report = Callable[[Progress], None]


def stage_layout(recipe: Recipe, place: StagePlace) -> Layout:
    """Lay a stage out over its hosts' devices; the n-th host is the n-th process of jax.

    Raises InvalidRequest, MemoryPlanError.
    """
    devices = [each for each in jax.devices() if each.process_index in place.members]
    return layout_over(recipe, devices)


def layout_over(recipe: Recipe, devices: Sequence[Any]) -> Layout:
    """Lay a stage out over all of these devices, unless the recipe has a mesh.

    Raises InvalidRequest, MemoryPlanError.
    """
    return layout_of(recipe.mesh_shape or (1, 1, len(devices)), recipe.rules).placed(devices)


def plan_stage(
    recipe: Recipe,
    checkpoint: Checkpoint | None,
    index: int,
    layout: Layout,
    config: ModelServerConfig,
    holders: Mapping[str, int],
    decided: EngineLimits | None = None,
) -> Deployment:
    """Plan one stage for this host's devices.

    decided: the primary's limits, which are checked here; None: this host decides, with as many
    pages as fit the stage with the least memory, assuming that other stages have devices like
    these. Raises MemoryPlanError, InvalidRequest.
    """
    parts = recipe.cut()
    if decided:
        return plan_alone(parts[index], checkpoint, layout, config, holders).following(decided)
    plans = [plan_alone(part, checkpoint, layout, config, holders) for part in parts]
    return plans[index].with_pages(min(plan.limits.pages for plan in plans))


def build_stage(
    plan: Deployment,
    checkpoint: Checkpoint | None,
    seed: int,
    link: Link,
    thread: StageThread,
    report: Report,
    on_failure: Callable[[BaseException], None] = lambda failure: None,
    buckets: Sequence[Bucket] | None = None,
    compiled: Programs = COMPILED_HERE,
    adapters: AdapterFiles | None = None,
) -> PipelineRunner:
    """Load weights, allocate pages and compile buckets; every host must warm them afterwards.

    The runner owns the link. seed: of random weights, used if checkpoint is None. buckets: None:
    the default ones. compiled: source of this stage's programs. adapters: of a model with room for
    them. Raises CheckpointError.
    """
    leaves = read_leaves(plan, checkpoint, seed, report)
    buckets = buckets or plan.buckets
    weights = partial(read_leaves, seed=seed, report=report)
    parts = read_parts(plan, checkpoint, seed, report, weights, leaves, adapters, buckets)
    whole = ModelRunner(plan.program, leaves, plan.allocate_pages(), buckets, parts)
    runner = PipelineRunner(whole, link, thread, on_failure)
    compile_or_close(runner, report, compiled)
    return runner


def plan_alone(
    part: Recipe,
    checkpoint: Checkpoint | None,
    layout: Layout,
    config: ModelServerConfig,
    holders: Mapping[str, int],
) -> Deployment:
    """Plan a stage as if there were no others. Raises MemoryPlanError naming the stage."""
    try:
        return deploy(part, checkpoint, layout, config, free_memory(layout, config, holders))
    except MemoryPlanError as exc:
        raise MemoryPlanError(f"{part.stage}: {exc.text}", param=exc.param) from exc
