"""Subject of ahead-of-time compilation: a model on a TPU slice, or on CPUs like these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.page_copies import PageCopies
from model_server.engine.step_program import StepProgram
from model_server.engine.types import EngineLimits
from model_server.loading.capacity import buckets_of, layout_for, plan_capacity, step_program
from model_server.loading.needs import check_devices
from model_server.models.weights.sharding import Layout
from model_server.plan.model import PlannedModel, open_model
from model_server.plan.slices import cpu_devices
from model_server.plan.target import Target, recipe_of, target_on
from model_server.plan.topology import topology_of
from sax.errors import InvalidRequest

_SLACK = 64  # keep 1/64 of a device's memory free


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on devices: everything its programs depend on."""

    title: str
    overrides: Mapping[str, str]
    topology: str
    has_checkpoint: bool
    config: ModelServerConfig
    limits: EngineLimits
    layout: Layout
    buckets: tuple[Bucket, ...]
    program: StepProgram

    @property
    def copies(self) -> PageCopies:
        """Programs that move pages for disaggregated prefill."""
        program, most = self.program, self.limits.pages_per_sequence
        return PageCopies(program.pages, program.last_tokens, program.everywhere, most)


def subject_of(
    model: str,
    overrides: Mapping[str, str],
    topology: str,
    config: ModelServerConfig,
    path: str | None = None,
) -> Subject:
    """Build the subject exactly as a load would; for CPUs this process must have them.

    path: the model path of a checkpoint, if not as in its config.json. Raises InvalidRequest,
    ModelPathNotFound, CheckpointError, MemoryPlanError; Unavailable without libtpu.
    """
    on = _on_cpu if cpu_devices(topology) else _on_slice
    with open_model(model, path) as opened:
        return on(opened, overrides, topology, config)


def _on_slice(
    model: PlannedModel, overrides: Mapping[str, str], topology: str, config: ModelServerConfig
) -> Subject:
    target = target_on(model, recipe_of(model, overrides), topology_of(topology), config)
    if config.kv_cache_bytes is None and config.memory_limit_bytes is None:
        target = _with_slack(target)
    return Subject(
        title=target.title,
        overrides=overrides,
        topology=target.topology.name,
        has_checkpoint=model.checkpoint is not None,
        config=target.config,
        limits=target.limits,
        layout=target.layout,
        buckets=target.buckets,
        program=target.program,
    )


def _on_cpu(
    model: PlannedModel, overrides: Mapping[str, str], topology: str, config: ModelServerConfig
) -> Subject:
    wanted, there = cpu_devices(topology), len(jax.devices())
    if wanted != there:
        raise InvalidRequest(
            f"{topology} has {wanted} devices, but this process has {there}", param="topology"
        )
    recipe = recipe_of(model, overrides)
    check_devices(recipe, model.checkpoint, config)
    sizes = layout_for(recipe)
    blueprint = recipe.blueprint(sizes, model.checkpoint)
    limits, _ = plan_capacity(recipe, blueprint, sizes, config, in_use=0)
    layout = sizes.placed()
    return Subject(
        title=model.title,
        overrides=overrides,
        topology=topology,
        has_checkpoint=model.checkpoint is not None,
        config=config,
        limits=limits,
        layout=layout,
        buckets=buckets_of(limits),
        program=step_program(recipe, blueprint, limits, layout),
    )


def _with_slack(target: Target) -> Target:
    """Leave out a few pages: a device of the real slice may report some MB less."""
    planned, limits = target.planned, target.limits
    page = planned.kv // (planned.pages + 1)
    spare = -(-target.topology.chip.usable // (_SLACK * page))
    pages = max(limits.pages_per_sequence, limits.pages - spare)
    return target.with_pages(pages)
