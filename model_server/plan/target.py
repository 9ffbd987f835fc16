"""A model on a slice: everything its programs are compiled from, made as a load makes it.

Compiles and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from model_server.checkpoints.checkpoint import Checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.step_program import StepProgram
from model_server.engine.types import EngineLimits
from model_server.loading.capacity import buckets_of, plan_capacity, step_program
from model_server.loading.memory_plan import MemoryPlan
from model_server.models.custom import CustomModel
from model_server.models.recipe import Recipe
from model_server.models.registry import find, make_recipe
from model_server.models.weights.sharding import Layout, layout_of
from model_server.models.weights.weight import Blueprint
from model_server.plan.model import PlannedModel, open_model
from model_server.plan.slices import Topology, topology_of
from sax.errors import InvalidRequest

_MESH = "overrides.ICI_MESH_SHAPE"


@dataclass(frozen=True, slots=True)
class Target:
    title: str  # as requested
    path: str  # in the registry
    topology: Topology
    recipe: Recipe
    layout: Layout  # over devices of the topology
    blueprint: Blueprint
    limits: EngineLimits
    planned: MemoryPlan
    config: ModelServerConfig  # with the chip's memory limit
    buckets: tuple[Bucket, ...]
    program: StepProgram
    checkpoint: Checkpoint | None = None  # may be closed by now

    def with_pages(self, pages: int) -> Target:
        """Return the target with another number of pages, and the program for it."""
        limits = structs.replace(self.limits, pages=pages)
        program = step_program(self.recipe, self.blueprint, limits, self.layout)
        return replace(self, limits=limits, planned=self.planned.with_pages(pages), program=program)


def target_of(
    model: str,
    overrides: Mapping[str, str],
    topology: str,
    config: ModelServerConfig,
    path: str | None = None,
) -> Target:
    """Return what a server of this slice would compile for this publish.

    path: the model path of a checkpoint, if not as in its config.json. Raises InvalidRequest,
    ModelPathNotFound, CheckpointError, MemoryPlanError; Unavailable without libtpu.
    """
    with open_model(model, path) as opened:
        return target_on(opened, recipe_of(opened, overrides), topology_of(topology), config)


def target_on(
    model: PlannedModel, recipe: Recipe, topology: Topology, config: ModelServerConfig
) -> Target:
    """Return the target of an open model.

    Raises InvalidRequest, CheckpointError, MemoryPlanError.
    """
    layout = layout_on(recipe, topology)
    blueprint = recipe.blueprint(layout, model.checkpoint)
    config = replace(config, memory_limit_bytes=memory_of(topology, config))
    limits, planned = plan_capacity(recipe, blueprint, layout, config, 0, own=topology.devices[:1])
    return Target(
        title=model.title,
        path=model.path,
        topology=topology,
        recipe=recipe,
        layout=layout,
        blueprint=blueprint,
        limits=limits,
        planned=planned,
        config=config,
        buckets=buckets_of(limits),
        program=step_program(recipe, blueprint, limits, layout),
        checkpoint=model.checkpoint,
    )


def recipe_of(model: PlannedModel, overrides: Mapping[str, str]) -> Recipe:
    """Configure the recipe as a load does. Raises InvalidRequest, CheckpointError."""
    entry = find(model.path)
    if isinstance(entry, CustomModel):
        raise InvalidRequest(
            f"{model.path} is a custom model: only language models can be planned",
            param="model",
        )
    if model.config is None and entry.needs_checkpoint:
        raise InvalidRequest(
            f"{model.path} takes its sizes from a checkpoint: name one, a config.json, or a "
            "well-known model such as meta-llama/Llama-3-70B",
            param="model",
        )
    recipe = make_recipe(model.path, model.config, overrides)
    if not isinstance(recipe, Recipe):
        raise InvalidRequest(
            f"{model.title} is an embedding model, which one device holds: only language models "
            "can be planned",
            param="model",
        )
    if recipe.stages > 1:
        raise InvalidRequest(
            f"NUM_STAGES is {recipe.stages}: a plan covers one mesh; leave it out, or plan the "
            "layers of one stage with NUM_LAYERS",
            param="overrides.NUM_STAGES",
        )
    return recipe


def memory_of(topology: Topology, config: ModelServerConfig) -> int:
    """Return the bytes that one device of the slice has for models."""
    usable = topology.chip.usable
    return min(usable, config.memory_limit_bytes or usable)


def layout_on(recipe: Recipe, topology: Topology) -> Layout:
    """Lay a model out over a slice. Raises InvalidRequest for a mesh that does not fit."""
    there = len(topology.devices)
    layout = layout_of(recipe.mesh_shape or (1, 1, there), recipe.rules)
    wanted = layout.mesh.size
    if wanted > there:
        shape = list(layout.mesh.shape.values())
        raise InvalidRequest(
            f"the mesh {shape} needs {wanted} devices and {topology.name} has {there}: override "
            f"ICI_MESH_SHAPE=[1,1,{there}], or name a larger slice",
            param=_MESH,
        )
    return layout.placed(topology.devices)
