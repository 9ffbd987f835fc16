"""Subject of ahead-of-time compilation: a model on a TPU slice, or on CPUs like these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from model_server.config import ModelServerConfig
from model_server.disaggregation.movable_pages import PageCopies
from model_server.engine.step_program import StepProgram
from model_server.loading.chosen_tasks import tasks_of
from model_server.loading.deployment import Deployment, plan_pages
from model_server.loading.device_memory import free_memory, layout_for
from model_server.loading.draft_loading import check_context, deployed, draft_programs
from model_server.loading.needs import check_devices
from model_server.loading.passes.beside import beside_of
from model_server.loading.placed_model import PlacedModel, place_model
from model_server.models.recipe import Recipe
from model_server.models.weights.sharding import Layout
from model_server.plan.model import PlannedModel, open_with_draft
from model_server.plan.slices import cpu_devices
from model_server.plan.topology import Topology, topology_of
from sax.errors import InvalidRequest

_SLACK = 64  # keep 1/64 of a device's memory free


@dataclass(frozen=True, slots=True)
class MadePass:
    """A lowered program that was compiled already."""

    lowered: jax.stages.Lowered
    program: jax.stages.Compiled

    def as_text(self) -> str:
        return self.lowered.as_text()

    def compile(self) -> jax.stages.Compiled:
        """Return the program; it is not compiled again."""
        return self.program


class KeptPasses:
    """Compiles programs and keeps them. Several threads call `compiled`, once per program."""

    def __init__(self) -> None:
        self.made: dict[str, MadePass] = {}

    def compiled(self, name: str, lower: Callable[[], jax.stages.Lowered]) -> Any:
        lowered = lower()
        self.made[name] = MadePass(lowered, lowered.compile())
        return self.made[name].program

    def pass_on(self, name: str, body: bytes) -> None:
        """Do nothing: there is no other host."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on devices: everything its programs depend on."""

    title: str
    overrides: Mapping[str, str]
    topology: str
    has_checkpoint: bool
    config: ModelServerConfig
    deployment: Deployment
    passes: Mapping[str, MadePass] = field(default_factory=dict[str, MadePass])  # by name

    @property
    def lowers(self) -> dict[str, Callable[[], jax.stages.Lowered | MadePass]]:
        """Functions that trace each program, by name."""
        return {
            **self.deployment.program.programs(self.deployment.buckets),
            **draft_programs(self.deployment),
            **{name: partial(_itself, made) for name, made in self.passes.items()},
        }

    @property
    def copies(self) -> tuple[PageCopies, ...]:
        """Copies of pages for other servers: of the model's, and of its draft model's."""
        whole, draft = self.deployment, deployed(self.deployment)
        own = self._copies(whole.program, draft=False)
        return (own,) if draft is None else (own, self._copies(draft.program, draft=True))

    def _copies(self, program: StepProgram, *, draft: bool) -> PageCopies:
        gives, takes = self.config.gives_pages, self.config.takes_pages
        return PageCopies(program, gives=gives, takes=takes, draft=draft)


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
    with open_with_draft(model, overrides, path) as opened:
        if wanted := cpu_devices(topology):
            name = topology
            deployment, passes = _on_cpu(opened, overrides, topology, wanted, config)
        else:
            name, deployment, passes = _on_slice(opened, overrides, topology, config)
        return Subject(
            title=opened.title,
            overrides=overrides,
            topology=name,
            has_checkpoint=opened.checkpoint is not None,
            config=config,
            deployment=deployment,
            passes=passes,
        )


def _itself(made: MadePass) -> MadePass:
    return made


def _on_slice(
    model: PlannedModel, overrides: Mapping[str, str], name: str, config: ModelServerConfig
) -> tuple[str, Deployment, Mapping[str, MadePass]]:
    recipe, topology = model.recipe(overrides), topology_of(name)
    placed, passes = _placed(model, recipe, topology.layout(recipe))
    made = plan_pages(placed, config, topology.memory(config))
    check_context(made)
    if config.kv_cache_bytes is None and config.memory_limit_bytes is None:
        made = _with_slack(made, topology)
    return topology.name, made, passes


def _placed(
    model: PlannedModel, recipe: Recipe, layout: Layout
) -> tuple[PlacedModel, Mapping[str, MadePass]]:
    """Place a model and compile its passes, whose memory is part of the plan."""
    placed = place_model(recipe, model.checkpoint, layout)
    beside = beside_of(placed, model.checkpoint, tasks_of(recipe, model.checkpoint))
    if beside is None:
        return placed, {}
    passes = KeptPasses()
    placed = beside.compile(passes)
    return placed, {name: passes.made[name] for name in beside.lowers}


def _on_cpu(
    model: PlannedModel,
    overrides: Mapping[str, str],
    name: str,
    wanted: int,
    config: ModelServerConfig,
) -> tuple[Deployment, Mapping[str, MadePass]]:
    there = len(jax.devices())
    if wanted != there:
        raise InvalidRequest(
            f"{name} has {wanted} devices, but this process has {there}", param="topology"
        )
    recipe = model.recipe(overrides)
    check_devices(recipe, model.checkpoint, config)
    layout = layout_for(recipe).placed()
    placed, passes = _placed(model, recipe, layout)
    made = plan_pages(placed, config, free_memory(layout, config, {}))
    check_context(made)
    return made, passes


def _with_slack(deployment: Deployment, topology: Topology) -> Deployment:
    """Leave out a few pages: a device of the real slice may report some MB less."""
    limits = deployment.limits
    page = deployment.memory.of.page  # a page less may leave window layers theirs
    spare = -(-topology.chip.usable // (_SLACK * page))
    return deployment.with_pages(max(limits.pages_per_sequence, limits.pages - spare))
