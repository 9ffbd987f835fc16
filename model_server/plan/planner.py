"""Plan a model: open it, choose a slice, compile every bucket, report the result.

Raises for bad input. A model that does not fit yields a plan too, with the changes that would help.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from model_server.config import ModelServerConfig
from model_server.engine.buckets import Bucket
from model_server.engine.compiling import compiled_in_turn
from model_server.models.recipe import Recipe
from model_server.plan.advice import attempt, changes, fitting_slices
from model_server.plan.anatomy import Anatomy, anatomy_of
from model_server.plan.compiled import Measured, OutOfMemory, measure
from model_server.plan.depth import Depths, depths_of, growth_of, program_with, typical_part, whole
from model_server.plan.model import PlannedModel, open_model
from model_server.plan.planning import headings, make_plan, memory_of, slice_of, usual_context
from model_server.plan.report import ModelPlan
from model_server.plan.slices import LENT
from model_server.plan.target import Target, layout_on, recipe_of, target_on
from model_server.plan.topology import Topology, topology_of
from model_server.plan.work import flops_ratio
from sax.errors import MemoryPlanError
from sax.format import human_bytes as human

AUTO = "auto"
_SPARE = 0.98  # margin on pages extrapolated from two points


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    model: str
    topology: str  # or auto
    config: ModelServerConfig
    overrides: Mapping[str, str]
    path: str | None = None  # the model path of a checkpoint; None: as its config.json says
    chips: tuple[str, ...] = ("v5e",)  # whose slices auto tries
    context: int | None = None  # cached tokens per sequence, for bytes and speeds
    is_full: bool = False  # compile all layers


@dataclass(frozen=True, slots=True)
class BucketCompiled:
    """Progress: one more bucket is compiled."""

    bucket: Bucket
    topology: str
    seconds: float
    number: int
    of: int


Report = Callable[[BucketCompiled], None]


def plan(request: PlanRequest, report: Report) -> ModelPlan:
    """Make a plan. Raises InvalidRequest, ModelPathNotFound, CheckpointError, Unavailable."""
    started = time.monotonic()
    with open_model(request.model, request.path) as model:
        recipe = recipe_of(model, request.overrides)
        if request.topology == AUTO:
            made = _smallest(request, model, recipe, report)
        else:
            made = _on(request, model, recipe, topology_of(request.topology), report)
    return replace(made, planning_seconds=time.monotonic() - started)


def _smallest(
    request: PlanRequest, model: PlannedModel, recipe: Recipe, report: Report
) -> ModelPlan:
    """Plan on the first slice that fits by arithmetic and by the compiler."""
    refused = None
    for topology, _ in fitting_slices(model, recipe, request.config, list(request.chips)):
        made = _on(request, model, recipe, topology, report)
        if made.fits:
            return made
        refused = made
    if refused is not None:
        return refused
    chip = request.chips[-1]
    largest = topology_of(f"{chip}:{LENT[chip][-1]}")
    return _no_room(request, model, recipe, largest)


def _on(
    request: PlanRequest, model: PlannedModel, recipe: Recipe, topology: Topology, report: Report
) -> ModelPlan:
    try:
        target = target_on(model, recipe, topology, request.config)
    except MemoryPlanError as exc:
        if exc.need is None:  # a flag is wrong: no slice helps
            raise
        return _no_room(request, model, recipe, topology)
    anatomy = anatomy_of(recipe)
    context = min(request.context or usual_context(target), target.limits.max_context)
    depths = None if request.is_full else depths_of(anatomy.layers)
    try:
        measured = _measure_all(target, anatomy, depths, report)
    except OutOfMemory as exc:
        return _refused(request, model, target, context, exc)
    made = make_plan(target, anatomy, measured, context)
    if depths is not None:
        made.notes.append(
            f"compiled with {depths}; the cost of those in the middle is added for each of "
            "the others (--full compiles them all)"
        )
    return _checked(request, model, target, measured, made)


def _measure_all(target: Target, anatomy: Anatomy, depths: Depths | None, report: Report):
    """Measure every bucket, compiling two at a time."""
    program = program_with(target, depths.more) if depths else target.program
    part = typical_part(target, depths) if depths else None
    # Largest first: it is the most likely not to fit.
    buckets = target.buckets[::-1]
    found: list[Measured] = []
    for bucket, measured in compiled_in_turn(buckets, lambda each: measure(program, each, part)):
        found.append(measured)
        report(
            BucketCompiled(bucket, target.topology.name, measured.seconds, len(found), len(buckets))
        )
    found = found[::-1]
    if depths is None:
        return found
    few = measure(program_with(target, depths.few), target.buckets[0])
    growth = growth_of(few, found[0], depths)
    return [
        whole(each, growth, depths, flops_ratio(target, anatomy, each.bucket, depths.more))
        for each in found
    ]


def _checked(
    request: PlanRequest,
    model: PlannedModel,
    target: Target,
    measured: Sequence[Measured],
    made: ModelPlan,
) -> ModelPlan:
    """Check that the programs leave memory for the planned pages."""
    memory = memory_of(target, measured)
    if memory.used <= memory.limit:
        return made
    problem = (
        f"{made.model} does not fit {target.topology.name} as planned: weights, "
        f"{memory.kv_pages} KV pages and programs take {human(memory.used)} per device, "
        f"{human(memory.temporaries)} of it temporaries; {human(memory.limit)} is available"
    )
    advice = _fewer_pages(target, memory.kv_pages_free) or changes(
        model, request.overrides, target.topology, request.config
    )
    return replace(made, fits=False, problem=problem, advice=advice)


def _refused(
    request: PlanRequest, model: PlannedModel, target: Target, context: int, exc: OutOfMemory
) -> ModelPlan:
    """Report that the compiler ran out of memory, and with how many pages it would not."""
    try:
        pages = _pages_by_line(target, exc)
    except OutOfMemory:
        pages = 0
    advice = _fewer_pages(target, pages) or changes(
        model, request.overrides, target.topology, request.config
    )
    return ModelPlan(
        **headings(target, context),
        fits=False,
        problem=(
            f"{target.title} does not fit {target.topology.name}: the compiler needs "
            f"{human(exc.used)} per device for {exc.bucket} with {target.planned.pages} KV pages "
            f"({human(target.planned.kv)}); {human(exc.available)} is available"
        ),
        advice=advice,
    )


def _pages_by_line(target: Target, exc: OutOfMemory) -> int:
    """Extrapolate the pages that fit from a program with this pool and with the smallest one."""
    least = target.limits.pages_per_sequence
    small = target.with_pages(least)
    measured = measure(small.program, exc.bucket)
    used = measured.arguments + measured.temporaries + measured.outputs + measured.code
    slope = (exc.used - used) / max(1, target.planned.pages - least)
    return least + math.floor((exc.available - used) / slope) if slope > 0 else 0


def _fewer_pages(target: Target, pages: int) -> list[str]:
    pages = int(pages * _SPARE)
    if pages < target.limits.pages_per_sequence:
        return []
    page = target.planned.kv // (target.planned.pages + 1)
    tokens = pages * target.limits.page_size
    return [
        f"--kv_cache_bytes {(pages + 1) * page}: {tokens:,} KV tokens instead of "
        f"{target.planned.pages * target.limits.page_size:,}"
    ]


def _no_room(
    request: PlanRequest, model: PlannedModel, recipe: Recipe, topology: Topology
) -> ModelPlan:
    layout = layout_on(recipe, topology)
    tried = attempt(model, recipe, topology, request.config)
    blueprint = recipe.blueprint(layout, model.checkpoint)
    config = request.config
    context = min(recipe.max_context, config.max_context or recipe.max_context)
    return ModelPlan(
        model=model.title,
        path=model.path,
        parameters=sum(math.prod(each.shape) for each in blueprint.declarations),
        slots=recipe.slots or config.slots,
        max_context=context,
        context=context,
        slice=slice_of(topology, dict(layout.mesh.shape)),
        fits=False,
        problem=(
            f"{model.title} does not fit {topology.name}: weights {human(tried.weights)} + "
            f"workspace and one sequence of {context:,} tokens "
            f"{human(tried.least - tried.weights)} = {human(tried.least)} per device; "
            f"{human(tried.limit)} is available"
        ),
        advice=changes(model, request.overrides, topology, config),
    )
